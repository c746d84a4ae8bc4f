# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments, wrong states and wrong threads: an exception, never a crash.
"""

import copy
import ctypes
import gc
import os
import pickle
import threading
import time
import unittest
import unittest.mock
import weakref

import numpy

import shard
from sdk_testing import (SdkTest, blocks_model, descriptors, first_values,
                         local_engine, run_ranks)
from shard import Code, DType, Pass


class ArgumentsTest(SdkTest):
    def test_numbers_that_do_not_fit_are_not_cut(self):
        model, _ = blocks_model()
        for wrong, kind in ((2**32, OverflowError), (2**40 + 1, OverflowError),
                            (1.5, TypeError), ("1", TypeError),
                            (None, TypeError)):
            with self.assertRaises(kind):
                model.freeze(wrong)
            if wrong is not None:
                with self.assertRaisesRegex(kind, "option stage"):
                    shard.Plan(model, stage=wrong, world_size=1)
        with self.assertRaises(OverflowError):
            model.add_param(0, "x", DType.F32, (2**63,))
        with self.assertRaises(TypeError):
            model.add_param(0, "x", DType.F32, 3)
        with self.assertRaisesRegex(OverflowError, "option owners"):
            shard.Plan(model, world_size=1, owners=[2**31, 0])

    def test_options_that_do_not_exist_are_named_with_those_that_do(self):
        model, _ = blocks_model()
        for wrong in ("stge", "struct_size", "reserved", "num_owners",
                      "wrap_user_data"):
            with self.assertRaisesRegex(TypeError,
                                        f"no '{wrong}'; it has stage"):
                shard.Plan(model, **{wrong: 1})
        with local_engine() as engine:
            with self.assertRaisesRegex(TypeError, "submodules"):
                engine.save(self.folder / "c", submodule=[1])

    def test_values_that_the_library_refuses_keep_its_message(self):
        model, _ = blocks_model()
        with self.raises_code(Code.INVALID_ARGUMENT, "adamx.*known"):
            shard.Plan(model, world_size=1, optimizer="adamx")
        with self.raises_code(Code.INVALID_ARGUMENT):
            shard.Plan(model, world_size=0)
        with self.raises_code(Code.INVALID_ARGUMENT):
            model.add_param(0, "a.b", DType.F32, (1,))
        with self.raises_code(Code.INVALID_ARGUMENT):
            shard.Comm("nowhere:")

    def test_a_nul_in_a_text_is_refused(self):
        with self.assertRaisesRegex(ValueError, "NUL"):
            shard.Model("a\0b")
        with self.assertRaisesRegex(ValueError, "option optimizer.*NUL"):
            shard.Plan(blocks_model()[0], optimizer="adam\0w")

    def test_a_name_that_is_no_utf_8_is_refused(self):
        model = shard.Model()
        for use in (lambda: shard.Model("a\udcff"),
                    lambda: model.add_module(0, "a\udcff", "A"),
                    lambda: model.add_module(0, "a", "a\udcff"),
                    lambda: model.add_param(0, "a\udcff", DType.F32, (1,)),
                    lambda: shard.StateDict().add_number("a\udcff", 1)):
            with self.raises_code(Code.INVALID_ARGUMENT, "UTF-8"):
                use()
        with local_engine() as engine:
            with self.raises_code(Code.INVALID_ARGUMENT, "UTF-8"):
                engine.set_blob("a\udcff", 1, b"")

    def test_wrong_shapes_and_types_of_values(self):
        with local_engine() as engine:
            view = engine.param(0)
            with self.assertRaisesRegex(ValueError, r"\(8,\), not \(8, 8\)"):
                engine.set_param(0, numpy.zeros(8))
            with self.assertRaisesRegex(TypeError, "complex"):
                engine.set_param(0, numpy.zeros((8, 8), complex))
            with self.raises_code(Code.INVALID_ARGUMENT):
                engine.bind_param(0, numpy.zeros(3, numpy.float32))
            with self.assertRaises((BufferError, ValueError)):
                engine.bind_param(
                    0, numpy.zeros((8, 16), numpy.float32)[:, ::2])
            with self.assertRaises((BufferError, TypeError)):
                engine.bind_param(0, bytes(256))
            with self.raises_code(Code.INVALID_ARGUMENT):
                engine.set_state(0, "exp_avg", numpy.zeros(3))
            with self.assertRaises(ValueError):
                view[0, 0] = 1
            with self.raises_code(Code.INVALID_ARGUMENT, "2"):
                engine.param(7)
            with self.assertRaises(TypeError):
                engine.set_blob("x", 1, "no bytes")

    def test_integers_that_do_not_fit_are_not_wrapped(self):
        state = shard.StateDict()
        with self.assertRaisesRegex(OverflowError, "'x' has values that I8"):
            state.add("x", DType.I8, numpy.array([300]))
        with self.assertRaisesRegex(ValueError, "77 is not a valid DType"):
            state.add("x", 77, numpy.zeros(1))
        with self.assertRaisesRegex(TypeError, "'x' has no .* OPAQUE; .* F32,"):
            state.add("x", DType.OPAQUE, numpy.zeros(1))
        state.add("x", DType.U8, [0, 255])
        self.assertEqual(state["x"].data.tolist(), [0, 255])

    def test_memory_that_is_bound_has_the_parameters_type(self):
        with local_engine() as engine:
            for wrong in (numpy.int32, numpy.float64, numpy.float16):
                with self.assertRaisesRegex(TypeError, "grad has elements of"):
                    engine.bind_param(0, grad=numpy.zeros((8, 8), wrong))

    def test_objects_of_another_kind_are_refused(self):
        model, _ = blocks_model()
        plan = shard.Plan(model, world_size=1)
        for wrong in (None, plan, 3):
            with self.assertRaisesRegex(TypeError, "must be a shard.Model"):
                shard.Plan(wrong)
            with self.assertRaisesRegex(TypeError, "must be a shard.Comm"):
                shard.Engine(plan, wrong)
        with local_engine() as engine:
            with self.assertRaisesRegex(TypeError, "must be a shard.Plan"):
                shard.Engine(model, engine.comm)
            with self.assertRaisesRegex(TypeError, "must be a shard.StateDict"):
                engine.load_state_dict({})

    def test_a_callback_that_cannot_be_called_is_refused_at_once(self):
        for wrong in (3, "no", (step for step in ())):
            for give in (lambda: shard.Comm("local:", log=wrong),
                         lambda: shard.Plan(blocks_model()[0], world_size=1,
                                            wrap_predicate=wrong)):
                with self.assertRaisesRegex(TypeError, "must be callable"):
                    give()

    def test_an_error_travels_between_processes(self):
        with self.raises_code(Code.NOT_FOUND) as raised:
            shard.open(self.folder / "none")
        copy = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((copy.code, str(copy), copy.rank, copy.detail),
                         (Code.NOT_FOUND, str(raised.exception), -1, {}))


class LifetimeTest(SdkTest):
    def test_after_close_everything_is_an_error(self):
        with local_engine() as engine:
            state = engine.state_dict()
            unit = engine.unit(0, Pass.FORWARD)
            engine.close()
            for use in (engine.step, lambda: engine.param(0), engine.plan,
                        lambda: engine.save(self.folder),
                        lambda: engine.summon(), unit.__enter__,
                        lambda: state["block0.weight"]):
                with self.raises_code(Code.FAILED_PRECONDITION, "is closed"):
                    use()
        model, _ = blocks_model()
        model.close()
        with self.raises_code(Code.FAILED_PRECONDITION, "model is closed"):
            model.freeze(0)
        with self.raises_code(Code.FAILED_PRECONDITION, "model is closed"):
            shard.Plan(model)
        with self.raises_code(Code.FAILED_PRECONDITION, "communicator is"):
            engine.comm.barrier()

    def test_an_array_keeps_the_memory_that_it_shows(self):
        with local_engine() as engine:
            values, grad = engine.param(0), engine.grad(0)
        del engine
        gc.collect()
        numpy.testing.assert_array_equal(values, first_values(0))
        grad[...] = 1

    def test_closing_gives_the_memory_back(self):
        with local_engine() as engine:
            freed = weakref.ref(engine._handle)
            engine.param(0), engine.grad(0), engine.unit_params(0)
            engine.close()
            self.assertIsNone(freed())

    def test_an_array_that_is_reshaped_is_not_given_out_again(self):
        with local_engine() as engine:
            engine.param(0).shape = 64
            engine.grad(0).flags.writeable = False
            self.assertEqual(engine.param(0).shape, (8, 8))
            engine.grad(0)[...] = 1

    def test_arrays_stand_in_the_way_of_a_new_plan_on_all_ranks(self):
        def work(comm):
            model, weights = blocks_model()
            plan = shard.Plan(model, stage=1, world_size=2)
            with shard.Engine(plan, comm) as engine:
                engine.broadcast_params()
                values = engine.param(0) if comm.rank == 1 else None
                with self.assertRaises(shard.Error) as raised:
                    engine.set_trainable([0], False)
                with self.assertRaises(shard.Error):
                    engine.add_param_group("?lr=1", [1])
                message = str(raised.exception)
                del values, raised
                engine.set_trainable([0], False)
                return message

        first, second = run_ranks(2, work)
        self.assertIn("rank 1", first)
        self.assertIn("those of parameter 0", second)

    def test_handles_are_neither_copied_nor_pickled(self):
        with local_engine() as engine:
            for one in (engine, engine.comm, engine.plan(),
                        engine.state_dict()):
                for way in (copy.copy, copy.deepcopy, pickle.dumps):
                    with self.assertRaisesRegex(TypeError, "open or make"):
                        way(one)

    def test_a_state_dict_ends_with_the_plan(self):
        with local_engine() as engine:
            state, copy = engine.state_dict(), engine.state_dict(copy=True)
            engine.set_trainable([0], False)
            for use in (lambda: state["block0.weight"],
                        lambda: engine.load_state_dict(state)):
                with self.raises_code(Code.FAILED_PRECONDITION, "copy=True"):
                    use()
            numpy.testing.assert_array_equal(copy["block0.weight"].data,
                                             first_values(0).reshape(-1))

    def test_a_released_unit_gives_nothing_out(self):
        with local_engine(wrap="class?names=Block") as engine:
            with engine.unit(1, Pass.BACKWARD) as unit:
                with self.raises_code(Code.INVALID_ARGUMENT, "is in unit 2"):
                    unit.mark_param_grad_ready(1)
                with self.raises_code(Code.INVALID_ARGUMENT, "is in unit 2"):
                    unit.param(1)
                unit.release()
                for use in (lambda: unit.param(0), lambda: unit.grad(0),
                            unit.params, unit.mark_grads_ready, unit.release):
                    with self.raises_code(Code.FAILED_PRECONDITION, "released"):
                        use()
            with self.raises_code(Code.FAILED_PRECONDITION, "not acquired"):
                engine.unit(1, Pass.FORWARD).param(0)

    def test_an_exception_releases_the_unit(self):
        with local_engine() as engine:
            with self.assertRaises(ZeroDivisionError):
                with engine.unit(0, Pass.FORWARD):
                    1 / 0
            with engine.unit(0, Pass.FORWARD):
                pass

    def test_full_parameters_end_once(self):
        with local_engine() as engine:
            with engine.summon() as full:
                values = full.param(0)
                full.end()
                for use in (full.end, lambda: full.param(0)):
                    with self.raises_code(Code.FAILED_PRECONDITION,
                                          "summon them again"):
                        use()
            numpy.testing.assert_array_equal(values, first_values(0))
            # Any value says whether to write, and ends the scope.
            engine.summon().end(None)
            with engine.summon(write_back=numpy.bool_(True)) as full:
                full.param(0)[...] = 2
            numpy.testing.assert_array_equal(engine.param(0), 2)

    def test_a_summon_that_is_no_call_summons_nothing(self):
        model, weights = blocks_model()
        with shard.Comm("local:") as comm:
            plan = shard.Plan(model, world_size=1)
            with shard.Engine(plan, comm) as engine:
                with self.assertRaises(TypeError):
                    engine.summon("block0")
                engine.writable_param(weights[0])[...] = 3
                numpy.testing.assert_array_equal(
                    engine.writable_param(weights[0]), 3)

    def test_no_view_outlives_full_parameters(self):
        model, weights = blocks_model()
        module = 1  # Has the first weight.
        with local_engine(model, weights) as engine:
            with engine.summon(module) as full:
                for view in (engine.param, engine.param_view,
                             engine.writable_param, engine.writable_param_view):
                    with self.raises_code(Code.FAILED_PRECONDITION,
                                          "parameter 0 is summoned.*FullParams"):
                        view(weights[0])
                with self.raises_code(Code.FAILED_PRECONDITION, "is summoned"):
                    engine.unit_params(0)
                # These are the engine's own.
                values = engine.param(weights[1])
                engine.grad(weights[0])[...] = 1
                numpy.testing.assert_array_equal(full.param(weights[0]),
                                                 first_values(weights[0]))
                # A summon that fails leaves the copies there.
                with self.raises_code(Code.FAILED_PRECONDITION):
                    engine.summon()
                with self.raises_code(Code.FAILED_PRECONDITION, "is summoned"):
                    engine.param(weights[0])
            numpy.testing.assert_array_equal(values, first_values(weights[1]))
            numpy.testing.assert_array_equal(engine.param(weights[0]),
                                             first_values(weights[0]))

    def test_a_thousand_lives_leave_nothing_behind(self):
        def live():
            with local_engine() as engine:
                engine.step()

        for _ in range(10):
            live()
        files, threads = descriptors(), set(os.listdir("/proc/self/task"))
        for _ in range(1000):
            live()
        gc.collect()
        self.assertEqual(descriptors(), files)
        # A thread that was joined is listed until the kernel has ended it.
        end = time.monotonic() + 10
        while not set(os.listdir("/proc/self/task")) <= threads:
            self.assertLess(time.monotonic(), end, threading.enumerate())


class DlpackTest(SdkTest):
    def test_numpy_takes_a_view_without_a_copy(self):
        with local_engine() as engine:
            view = engine.grad_view(0)
            self.assertEqual(view.__dlpack_device__(), (1, 0))
            array = numpy.from_dlpack(view)
            self.assertEqual(array.shape, (8, 8))
            array_address = array.__array_interface__["data"][0]
            self.assertEqual(array_address, engine.grad(0).ctypes.data)
            del view
            gc.collect()
        self.assertEqual(array[0, 0], 0)  # The array keeps the memory.
        del array
        gc.collect()
        from shard import _dlpack
        self.assertEqual(_dlpack._alive, {})

    def test_a_capsule_that_nobody_takes_is_freed(self):
        from shard import _dlpack
        with local_engine() as engine:
            capsule = engine.param_view(0).__dlpack__()
            self.assertEqual(len(_dlpack._alive), 1)
            other = engine.param_view(1).__dlpack__()
            self.assertEqual(len(_dlpack._alive), 2)
            # With the next capsule, or once an engine lets go of its memory.
            del capsule
            capsule = engine.param_view(1).__dlpack__()
            self.assertEqual(len(_dlpack._alive), 2)
            del capsule, other
        self.assertEqual(_dlpack._alive, {})

    def test_a_tensor_that_is_deleted_leaves_an_exception(self):
        from shard import _dlpack
        # Calls with the GIL, and raises what is set where the result is NULL.
        consumer = ctypes.PyDLL(os.environ["SHARD_DLPACK_CONSUMER"])
        consumer.refuse.argtypes = [ctypes.c_void_p]
        consumer.refuse.restype = ctypes.py_object
        with local_engine() as engine:
            for next_capsule in (False, True):
                view = engine.param_view(0)
                capsule = view.__dlpack__()
                tensor = _dlpack._pointer_of(capsule, b"dltensor")
                _dlpack._set_name(capsule, _dlpack._TAKEN)
                lent = weakref.ref(view.memory)
                del view, capsule
                gc.collect()
                self.assertIsNotNone(lent())
                with unittest.mock.patch("sys.unraisablehook") as unraisable:
                    with self.assertRaisesRegex(ValueError, "^refused$"):
                        consumer.refuse(tensor)
                unraisable.assert_not_called()
                # Memory goes with the next capsule, or a collection.
                if next_capsule:
                    engine.param_view(1).__dlpack__()
                else:
                    gc.collect()
                self.assertIsNone(lent())

    def test_a_tensor_of_a_gpu_without_elements_is_deleted_once(self):
        from shard import _dlpack, _views
        view = _views.View(None, DType.F32, [0], None, True, device=(2, 0))
        capsule = view.__dlpack__()
        tensor = _dlpack._pointer_of(capsule, b"dltensor")
        _dlpack._set_name(capsule, _dlpack._TAKEN)
        _dlpack.drop_unneeded()
        self.assertEqual(list(_dlpack._alive), [tensor])
        deleter = _dlpack._Tensor.from_address(tensor).deleter
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(tensor)
        _dlpack.drop_unneeded()
        self.assertEqual(_dlpack._alive, {})

    def test_a_collection_may_come_while_tensors_are_dropped(self):
        from shard import _dlpack, _views
        thresholds = gc.get_threshold()
        self.addCleanup(gc.set_threshold, *thresholds)
        gc.disable()
        delete = None
        for _ in range(100):
            view = _views.View(None, DType.F32, [0], None, True, device=(2, 0))
            capsule = view.__dlpack__()
            tensor = _dlpack._pointer_of(capsule, b"dltensor")
            _dlpack._set_name(capsule, _dlpack._TAKEN)
            deleter = _dlpack._Tensor.from_address(tensor).deleter
            delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)
        for tensor in list(_dlpack._alive):
            delete(tensor)
        # Nearly each allocation collects all generations.
        gc.set_threshold(1, 1, 1)
        gc.enable()
        _dlpack.drop_unneeded()
        self.assertEqual(_dlpack._alive, {})

    def test_a_view_that_numpy_refuses_is_lent_no_more(self):
        from shard import _dlpack, _views
        for dtype, device in ((DType.BF16, (1, 0)), (DType.F32, (2, 0))):
            memory = ctypes.create_string_buffer(64)
            view = _views.View(ctypes.addressof(memory), dtype, [4], memory,
                               True, device=device)
            with self.assertRaisesRegex(Exception, "Unsupported d") as caught:
                numpy.from_dlpack(view)
            self.assertNotIsInstance(caught.exception, SystemError)
            lent = weakref.ref(view.memory)
            del view
            _dlpack.drop_unneeded()
            self.assertIsNone(lent())
        self.assertEqual(_dlpack._alive, {})

    def test_a_plan_changes_after_numpy_has_refused_a_view(self):
        model = shard.Model("Net")
        weight = model.add_param(0, "weight", DType.BF16, [4])
        with shard.Comm("local:") as comm, shard.Engine(
                shard.Plan(model, world_size=1), comm) as engine:
            engine.broadcast_params()
            with self.assertRaisesRegex(Exception, "Unsupported d"):
                numpy.from_dlpack(engine.param_view(weight))
            engine.set_trainable([weight], False)


if __name__ == "__main__":
    unittest.main()
