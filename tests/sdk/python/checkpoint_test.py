# SPDX-License-Identifier: Apache-2.0
"""Reading, converting and exporting checkpoints, without an engine."""

import json
import os
import pathlib
import struct
import threading
import unittest

import numpy

import shard
from sdk_testing import SdkTest, blocks_model, first_values, local_engine
from shard import BlobRule, Code, DType, Format, Role


class ReadTest(SdkTest):
    """On a checkpoint of two blocks after one step of sgd with momentum."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "ckpt"
        with local_engine(optimizer="sgd?lr=0.5&momentum=0.9") as engine:
            engine.grad(0)[...] = 1
            engine.set_blob("loader", BlobRule.REPLICATED, b"at 7")
            engine.step()
            engine.save(self.root)
        self.checkpoint = shard.open(self.root)
        self.addCleanup(self.checkpoint.close)

    def test_is_a_mapping_of_keys(self):
        keys = [key for key in self.checkpoint]
        self.assertEqual(len(keys), len(self.checkpoint))
        self.assertIn("block0.weight", keys)
        self.assertIn("state.block1.weight.momentum_buffer", keys)
        self.assertIn("block1.weight", self.checkpoint)
        self.assertNotIn("block2.weight", self.checkpoint)
        self.assertIsNone(self.checkpoint.get("block2.weight"))
        with self.assertRaises(KeyError) as raised:
            self.checkpoint["block2.weight"]
        self.assertEqual(raised.exception.code, Code.NOT_FOUND)
        self.assertIn("block2.weight", str(raised.exception))

    def test_a_tensor_is_a_numpy_array_when_it_is_read(self):
        tensor = self.checkpoint["block0.weight"]
        expected = first_values(0) - 0.5
        self.assertEqual(tensor.shape, (8, 8))
        self.assertEqual(tensor.dtype, DType.F32)
        self.assertEqual((tensor.size, tensor.ndim, tensor.nbytes, len(tensor)),
                         (64, 2, 256, 8))
        numpy.testing.assert_array_equal(tensor[...], expected)
        numpy.testing.assert_array_equal(numpy.asarray(tensor), expected)
        numpy.testing.assert_array_equal(tensor + 1, expected + 1)
        numpy.testing.assert_array_equal(
            tensor - self.checkpoint["block1.weight"],
            expected - first_values(1))
        self.assertEqual(float(numpy.max(tensor)), expected.max())

    def test_every_index_gives_what_numpy_gives(self):
        tensor = self.checkpoint["block1.weight"]
        array = tensor[...]
        for index in (
                3, -1, numpy.int64(2), slice(2, 5), slice(None, None, 3),
                slice(None, None, -2), slice(6, 1, -1), slice(5, 5), (2, 3),
                (slice(1, 3), 4), (slice(None), slice(2, 4)), (-1, slice(1, 3)),
                (..., 1), (slice(2, 4), ...), None, (slice(1, 3), None),
                (), [1, 3], (slice(1, 3), [1, 2]), array > 1):
            with self.subTest(index=index):
                numpy.testing.assert_array_equal(tensor[index], array[index])
        for index in (8, -9, (0, 8)):
            with self.assertRaises(IndexError):
                tensor[index]
        numpy.testing.assert_array_equal([row for row in tensor], array)

    def test_a_slice_reads_only_its_range(self):
        # With the bytes of all other rows gone, the first ones can be read. A
        # file without checksums, for these need all that they are of.
        model, weights = blocks_model(width=128)
        path = self.folder / "large.safetensors"
        with local_engine(model, weights) as engine:
            engine.save(self.folder / "large", content=shard.Content.MODEL)
        with shard.open(self.folder / "large") as checkpoint:
            checkpoint.export(path)
        with shard.open(path) as checkpoint:
            tensor = checkpoint["block0.weight"]
            expected = first_values(0, (128, 128))
            os.truncate(path, tensor.slices()[0].offset + 8 * 128 * 4)
            numpy.testing.assert_array_equal(tensor[:8], expected[:8])
            numpy.testing.assert_array_equal(tensor[7, 2:4], expected[7, 2:4])
            numpy.testing.assert_array_equal(tensor[1:8:3, ::5],
                                             expected[1:8:3, ::5])
            numpy.testing.assert_array_equal(tensor.read(3, 5),
                                             expected.reshape(-1)[3:8])
            with self.raises_code(Code.CORRUPT):
                tensor[8]

    def test_elements_outside_are_an_error(self):
        tensor = self.checkpoint["block0.weight"]
        for begin, numel in ((0, 65), (-1, 2), (65, None), (60, -1),
                             (0, 2**62)):
            with self.raises_code(Code.OUT_OF_RANGE, "block0.weight"):
                tensor.read(begin, numel)

    def test_says_what_else_is_in_it(self):
        info = self.checkpoint.info()
        self.assertEqual((info.format, info.step, info.world_size),
                         (Format.CHECKPOINT, 1, 1))
        self.assertEqual(pathlib.Path(self.checkpoint.path).parent, self.root)
        self.assertIn("sgd?lr=0.5", self.checkpoint.groups()[0])
        self.assertEqual(self.checkpoint.blobs(), {
            shard.BlobInfo("loader", BlobRule.REPLICATED, 0): b"at 7"})
        self.assertGreater(self.checkpoint.file(0).bytes, 0)
        state = self.checkpoint["state.block0.weight.momentum_buffer"]
        self.assertEqual((state.role, state.alias_of), (Role.STATE, None))
        self.assertEqual(state.type, "f32")
        self.assertEqual(self.checkpoint["block0.weight"].step, 1)
        self.assertEqual(state.info.numel, 64)
        self.assertIn("momentum_buffer", repr(state))
        self.assertEqual(self.checkpoint.scalars(), {})

    def test_verify_reports_progress_and_damage(self):
        seen = []
        self.checkpoint.verify(threads=2,
                               progress=lambda *bytes: seen.append(bytes))
        self.assertEqual(seen[-1][0], seen[-1][1])
        part = self.checkpoint["block1.weight"].slices()[0]
        file = pathlib.Path(self.checkpoint.path) / self.checkpoint.file(
            part.file).name
        with open(file, "r+b") as data:
            data.seek(part.offset)
            data.write(b"\xff")
        with self.raises_code(Code.CORRUPT) as raised:
            self.checkpoint.verify()
        self.assertIn("block1.weight", raised.exception.detail["problems"][0])

    def test_a_progress_function_that_raises_ends_the_call(self):
        class Stop(Exception):
            pass

        def progress(done, total):
            raise Stop("enough")

        with self.assertRaisesRegex(Stop, "enough") as raised:
            self.checkpoint.verify(progress=progress)
        self.assertEqual(raised.exception.__cause__.code, Code.CANCELLED)
        for write, path in ((self.checkpoint.export, "m.safetensors"),
                            (self.checkpoint.convert, "other")):
            with self.assertRaises(Stop):
                write(self.folder / path, progress=progress)

    def test_many_threads_read_one_checkpoint(self):
        expected = self.checkpoint["block0.weight"][...]
        wrong = []

        def read():
            for _ in range(50):
                if not (self.checkpoint["block0.weight"] == expected).all():
                    wrong.append(1)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_after_close_nothing_but_an_error(self):
        tensor = self.checkpoint["block0.weight"]
        self.checkpoint.close()
        self.checkpoint.close()
        self.assertTrue(self.checkpoint.closed)
        for use in (self.checkpoint.info, self.checkpoint.verify,
                    lambda: self.checkpoint["block0.weight"],
                    lambda: next(iter(self.checkpoint))):
            with self.raises_code(Code.FAILED_PRECONDITION, "is closed"):
                use()
        self.assertIn("closed", repr(self.checkpoint))
        # A tensor keeps its file.
        self.assertEqual(tensor[0, 0], first_values(0)[0, 0] - 0.5)


class WriteTest(SdkTest):
    def save(self, **plan_options):
        with local_engine(**plan_options) as engine:
            engine.save(self.folder / "ckpt")
        return shard.open(self.folder / "ckpt")

    def test_checkpoints_become_safetensors_and_come_back(self):
        path = self.folder / "model.safetensors"
        with self.save() as checkpoint:
            checkpoint.export(path, content=shard.Content.MODEL)
            with self.raises_code(Code.ALREADY_EXISTS, "overwrite"):
                checkpoint.export(path)
            checkpoint.export(path, content=shard.Content.MODEL, overwrite=True)
        with shard.open(path) as model:
            self.assertEqual(model.info().format, Format.SAFETENSORS)
            self.assertEqual(sorted(model), ["block0.weight", "block1.weight"])
            numpy.testing.assert_array_equal(model["block1.weight"],
                                             first_values(1))
            model.convert(self.folder / "back")
        with shard.open(self.folder / "back") as back:
            numpy.testing.assert_array_equal(back["block0.weight"],
                                             first_values(0))

    def test_a_checkpoint_is_resharded_and_merged(self):
        with self.save() as checkpoint:
            checkpoint.convert(self.folder / "three", world_size=3)
        with shard.open(self.folder / "three") as three:
            self.assertEqual(three.info().num_files, 3)
            three.convert(self.folder / "one", world_size=1)
        with shard.open(self.folder / "one") as one:
            self.assertEqual(one.info().num_files, 1)
            numpy.testing.assert_array_equal(one["block0.weight"],
                                             first_values(0))

    def test_bf16_and_f16_arrive_with_their_values(self):
        with self.save() as checkpoint:
            for dtype in (DType.BF16, DType.F16, DType.F64):
                checkpoint.convert(self.folder / dtype.name, dtype=dtype)
                with shard.open(self.folder / dtype.name) as narrow:
                    tensor = narrow["block1.weight"]
                    self.assertEqual(tensor.dtype, dtype)
                    # These values have few digits: no rounding.
                    numpy.testing.assert_array_equal(tensor, first_values(1))

    def test_a_tied_weight_is_read_under_each_name(self):
        model, weights = blocks_model()
        model.tie(0, "head", weights[0])
        with self.save(model=model, weights=weights) as checkpoint:
            aliases = [t for t in checkpoint.values() if t.alias_of]
            self.assertEqual(len(aliases), 1)
            alias = aliases[0]
            numpy.testing.assert_array_equal(
                alias, checkpoint[alias.alias_of][...])

    def test_the_loss_scale_is_a_number_of_the_whole(self):
        with self.save(engine_options={
                "loss_scaling": "dynamic?init_scale=8"}) as checkpoint:
            self.assertEqual(checkpoint.scalars()["loss_scale.scale"], 8)

    def test_8_bit_states_are_refused_with_the_remedy(self):
        with self.save(optimizer="adamw?states=q8") as checkpoint:
            tensor = checkpoint["state.block0.weight.exp_avg"]
            self.assertEqual(tensor.dtype, DType.Q8)
            with self.assertRaisesRegex(TypeError, "export"):
                tensor[...]
            self.assertEqual(len(tensor.raw()), 64)
            path = self.folder / "m.safetensors"
            checkpoint.export(path)
        with shard.open(path) as values:
            self.assertEqual(values["state.block0.weight.exp_avg"][0, 0], 0)


class SafetensorsTest(SdkTest):
    """On files that other programs may have written."""

    def write(self, header, data, name="m.safetensors"):
        text = header if isinstance(header, bytes) else json.dumps(
            header, ensure_ascii=False).encode("utf-8", "surrogateescape")
        path = self.folder / name
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        return path

    def open(self, dtype, shape, data):
        path = self.write({"x": {"dtype": dtype, "shape": shape,
                                 "data_offsets": [0, len(data)]}}, data)
        checkpoint = shard.open(path)
        self.addCleanup(checkpoint.close)
        return checkpoint["x"]

    def test_every_type_has_its_values(self):
        for name, kind in (("F64", "f8"), ("F32", "f4"), ("F16", "f2"),
                           ("I64", "i8"), ("I32", "i4"), ("I16", "i2"),
                           ("I8", "i1"), ("U64", "u8"), ("U32", "u4"),
                           ("U16", "u2"), ("U8", "u1"), ("BOOL", "?")):
            values = numpy.array([[0, 1, 1], [1, 0, 1]], kind)
            tensor = self.open(name, [2, 3], values.tobytes())
            self.assertEqual(tensor[...].dtype, numpy.dtype(kind))
            numpy.testing.assert_array_equal(tensor, values)

    def test_float8_has_the_values_of_its_codes(self):
        codes = bytes([0x00, 0x38, 0xB8, 0x7E, 0x01, 0x7F])
        numpy.testing.assert_array_equal(
            self.open("F8_E4M3", [6], codes)[...],
            numpy.float32([0, 1, -1, 448, 2.0**-9, numpy.nan]))
        codes = bytes([0x3C, 0xBC, 0x7B, 0x01, 0x7C, 0x7E])
        numpy.testing.assert_array_equal(
            self.open("F8_E5M2", [6], codes)[...],
            numpy.float32([1, -1, 57344, 2.0**-16, numpy.inf, numpy.nan]))

    def test_dlpack_gives_what_is_stored(self):
        values = numpy.float32([[1, 2, 3], [4, 5, 6]])
        tensor = self.open("F32", [2, 3], values.tobytes())
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        array = numpy.from_dlpack(tensor)
        del tensor
        numpy.testing.assert_array_equal(array, values)
        self.assertEqual(numpy.from_dlpack(self.open("I8", [0], b"")).size, 0)
        with self.assertRaisesRegex(BufferError, "F8_E4M3"):
            self.open("F8_E4M3", [1], b"0").__dlpack__()

    def test_scalars_and_empty_tensors(self):
        self.assertEqual(self.open("F32", [], struct.pack("f", 7))[()], 7)
        self.assertEqual(self.open("F32", [0, 3], b"")[...].shape, (0, 3))
        with self.assertRaisesRegex(TypeError, "no length"):
            len(self.open("F32", [], bytes(4)))

    def test_a_type_that_nobody_reads_is_listed(self):
        tensor = self.open("C64", [1], b"a number")
        self.assertEqual((tensor.dtype, tensor.type), (DType.OPAQUE, "C64"))
        self.assertEqual(bytes(tensor.raw()), b"a number")
        self.assertEqual(bytes(tensor.raw(2, 3)), b"num")
        with self.raises_code(Code.OUT_OF_RANGE, "which has 8"):
            tensor.raw(2, 7)
        with self.assertRaisesRegex(TypeError, "C64.*raw"):
            tensor[...]
        with self.assertRaisesRegex(BufferError, "C64"):
            tensor.__dlpack__()

    def test_a_type_that_only_a_newer_library_knows_is_refused(self):
        tensor = self.open("F32", [1], bytes(4))
        tensor._info = tensor.info._replace(dtype=99)
        with self.assertRaisesRegex(TypeError, "raw"):
            tensor[...]
        with self.assertRaisesRegex(BufferError, "DLPack"):
            tensor.__dlpack__()

    def test_a_name_that_is_no_utf_8_is_refused(self):
        header = (b'{"a\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}')
        with self.raises_code(Code.CORRUPT):
            shard.open(self.write(header, bytes(4)))

    def test_a_folder_may_have_any_name(self):
        header = {"ü": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
        path = self.write(header, bytes(4), "m\udcff.safetensors")
        with shard.open(path) as checkpoint:
            self.assertEqual(list(checkpoint), ["ü"])
            self.assertEqual(checkpoint.path, str(path))

    def test_what_is_no_checkpoint_is_a_clear_error(self):
        with self.raises_code(Code.NOT_FOUND, "none"):
            shard.open(self.folder / "none")
        with self.raises_code(Code.CORRUPT):
            shard.open(self.write(b"{", b""))
        with self.assertRaisesRegex(ValueError, "NUL"):
            shard.open("a\0b")
        with self.assertRaises(TypeError):
            shard.open(3)


if __name__ == "__main__":
    unittest.main()
