// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libshard/shard"
)

// savedCheckpoint saves a step of declare's model, and opens the checkpoint.
func savedCheckpoint(t *testing.T) (checkpoint *shard.Checkpoint) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		r.trainStep(engine)
		check(engine.SetBlob("loader", shard.BlobReplicated, []byte("at 5")))
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
	})
	return must(shard.CheckpointOpen(root))
}

func TestACheckpointIsReadWithoutAnEngine(t *testing.T) {
	defer catch(t)
	checkpoint := savedCheckpoint(t)
	defer checkpoint.Close()
	info := must(checkpoint.Info())
	expectEqual(t, info.Format, shard.FormatCheckpoint)
	expectEqual(t, info.Step, 1)
	expectEqual(t, info.WorldSize, 1)
	if !strings.HasSuffix(must(checkpoint.Path()), "step-000001") {
		t.Error(must(checkpoint.Path()))
	}
	tensor := must(checkpoint.Find("block1.bias"))
	expectEqual(t, must(checkpoint.TensorKey(tensor)), "block1.bias")
	expectEqual(t, must(checkpoint.TensorType(tensor)), "f32")
	described := must(checkpoint.Tensor(tensor))
	expectEqual(t, described.Role, shard.RoleParam)
	expectEqual(t, fmt.Sprint(described.Shape), "[3]")
	expectEqual(t, described.Step, 1)

	values := make([]float32, 3)
	check(checkpoint.Read(tensor, 0, 3, shard.Bytes(values)))
	part := make([]float32, 1)
	check(checkpoint.Read(tensor, 2, 1, shard.Bytes(part)))
	expectEqual(t, part[0], values[2])
	expectError(t, checkpoint.Read(tensor, 2, 2, shard.Bytes(values)), shard.OutOfRange)
	expectError(t, checkpoint.Read(tensor, 0, 1, shard.Bytes(values)), shard.InvalidArgument)

	slice := must(checkpoint.Slice(tensor, 0))
	expectEqual(t, slice.Numel, 3)
	expectEqual(t, slice.HasChecksum, true)
	name, bytes, err := checkpoint.File(slice.File)
	check(err)
	expectEqual(t, name, "data-00000.bin")
	if bytes < slice.Offset+slice.Bytes {
		t.Errorf("%d bytes end before the slice", bytes)
	}
	expectEqual(t, must(checkpoint.Group(0))[:6], "adamw?")
	blob := must(checkpoint.BlobInfo(0))
	expectEqual(t, blob, shard.BlobInfo{Name: "loader", Rule: shard.BlobReplicated, Rank: 0})
	expectEqual(t, string(must(checkpoint.Blob(0))), "at 5")

	_, err = checkpoint.Find("block9.bias")
	expectError(t, err, shard.NotFound, "block9.bias")
	_, err = checkpoint.Tensor(1 << 40)
	expectError(t, err, shard.InvalidArgument)
	_, err = checkpoint.BlobInfo(1 << 40)
	expectError(t, err, shard.InvalidArgument, "blob 1099511627776")
	_, _, err = checkpoint.Scalar(99)
	expectError(t, err, shard.InvalidArgument, "99")
}

func TestTheNumbersOfACheckpointAreRead(t *testing.T) {
	root := t.TempDir()
	onOneRank(t, func(r *rank) {
		plan := r.planFor(shard.PlanOptions{})
		defer plan.Close()
		engine := must(shard.EngineCreate(r.ctx, plan, r.comm,
			&shard.EngineOptions{LossScaling: "dynamic?init_scale=8"}))
		defer engine.Close()
		check(engine.BroadcastParams(r.ctx))
		check(shard.CheckpointSave(r.ctx, engine, root, nil))
		checkpoint := must(shard.CheckpointOpen(root))
		defer checkpoint.Close()
		found := map[string]float64{}
		for i := 0; i < must(checkpoint.Info()).NumScalars; i++ {
			name, value, err := checkpoint.Scalar(i)
			check(err)
			found[name] = value
		}
		expectEqual(t, found["loss_scale.scale"], 8)
	})
}

func TestACheckpointIsConvertedAndExported(t *testing.T) {
	onOneRank(t, func(r *rank) {
		checkpoint := savedCheckpoint(t)
		defer checkpoint.Close()
		root := t.TempDir()
		calls := 0
		check(checkpoint.Convert(r.ctx, root, &shard.ConvertOptions{WorldSize: 2, Progress: func(done, total uint64) error {
			calls++
			return nil
		}}))
		if calls == 0 {
			t.Error("no progress")
		}
		converted := must(shard.CheckpointOpen(root))
		defer converted.Close()
		expectEqual(t, must(converted.Info()).NumFiles, 2)
		path := filepath.Join(root, "model.safetensors")
		options := shard.ConvertOptions{Content: shard.ContentModel, DType: shard.BF16}
		check(converted.Export(r.ctx, path, &options))
		expectError(t, converted.Export(r.ctx, path, &options), shard.AlreadyExists, "model.safetensors")
		expectError(t, converted.Export(r.ctx, "a\x00.safetensors", nil), shard.InvalidArgument, "NUL")
		exported := must(shard.CheckpointOpen(path))
		defer exported.Close()
		expectEqual(t, must(exported.Info()).Format, shard.FormatSafetensors)
		expectEqual(t, must(exported.Tensor(0)).DType, shard.BF16)

		engine := r.engineFor(shard.PlanOptions{})
		defer engine.Close()
		report := must(shard.CheckpointLoad(r.ctx, engine, path,
			&shard.LoadOptions{Filter: shard.StateFilter{Content: shard.ContentModel}, Convert: true}))
		expectEqual(t, report.Converted, numParams)
		_, err := shard.CheckpointLoad(r.ctx, engine, path, nil)
		expectError(t, err, shard.FailedPrecondition)
		if detail := err.(*shard.Error).Detail; !strings.Contains(detail, "missing") {
			t.Errorf("the detail is %q", detail)
		}
		expectEqual(t, must(engine.LastLoadReportJSON())[:10], `{"missing"`)
	})
}

func TestADamagedCheckpointIsCorrupt(t *testing.T) {
	onOneRank(t, func(r *rank) {
		checkpoint := savedCheckpoint(t)
		slice := must(checkpoint.Slice(must(checkpoint.Find("block0.weight")), 0))
		name, _, err := checkpoint.File(slice.File)
		check(err)
		path := must(checkpoint.Path())
		check(checkpoint.Close())
		file := must(os.OpenFile(filepath.Join(path, name), os.O_WRONLY, 0))
		must(file.WriteAt([]byte{1, 2, 3, 4}, int64(slice.Offset)))
		check(file.Close())
		damaged := must(shard.CheckpointOpen(path))
		defer damaged.Close()
		err = damaged.Verify(r.ctx, nil)
		expectError(t, err, shard.Corrupt, "block0.weight")
		if !strings.Contains(err.(*shard.Error).Detail, "problems") {
			t.Errorf("no detail in %v", err)
		}
	})
}

// writeSafetensors writes a file with one f32 element under a key.
func writeSafetensors(path, key string) {
	header := fmt.Sprintf(`{"%s":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, key)
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	check(os.WriteFile(path, append(append(file, header...), 0, 0, 0, 0), 0o644))
}

func TestNamesThatAreNoUTF8AreAnErrorOrKeepTheirBytes(t *testing.T) {
	defer catch(t)
	folder := filepath.Join(t.TempDir(), "not\xffutf8")
	check(os.Mkdir(folder, 0o755))
	path := filepath.Join(folder, "model.safetensors")
	writeSafetensors(path, "weight")
	checkpoint := must(shard.CheckpointOpen(path))
	defer checkpoint.Close()
	expectEqual(t, must(checkpoint.Path()), path)

	writeSafetensors(path, "wei\xffght")
	_, err := shard.CheckpointOpen(path)
	expectError(t, err, shard.Corrupt)

	model := must(shard.ModelCreate(""))
	defer model.Close()
	_, err = model.AddParam(0, "wei\xffght", shard.F32, nil)
	expectError(t, err, shard.InvalidArgument)
	state := must(shard.StateDictCreate())
	defer state.Close()
	expectError(t, state.AddNumber("wei\xffght", 1), shard.InvalidArgument, "UTF-8")
	_, err = shard.CheckpointOpen("ckpt\x00")
	expectError(t, err, shard.InvalidArgument, "NUL at byte 4")
}

func TestAStateDictIsThisRanksPartOfAnEngine(t *testing.T) {
	onRanks(t, 2, "", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 1})
		defer engine.Close()
		state := must(shard.StateDictGet(engine, nil))
		defer state.Close()
		held := int64(0)
		for i := int64(0); i < must(state.NumTensors()); i++ {
			if must(state.Tensor(i)).Role != shard.RoleParam {
				continue
			}
			_, data, err := state.Local(i)
			check(err)
			held += data.Numel()
		}
		sum := []float64{float64(held)}
		check(r.comm.Sum(r.ctx, sum))
		expectEqual(t, sum[0], blocks*(weightNumel+biasNumel))

		tensor := must(state.Find("block2.weight"))
		expectEqual(t, must(state.TensorKey(tensor)), "block2.weight")
		_, view, err := state.Local(tensor)
		check(err)
		copied := must(shard.StateDictGet(engine, &shard.StateDictOptions{Copy: true}))
		defer copied.Close()
		_, kept, err := copied.Local(tensor)
		check(err)
		before := fmt.Sprint(must(kept.Float32s()))
		r.trainStep(engine)
		expectOver(t, view, "has changed the engine")
		expectEqual(t, fmt.Sprint(must(kept.Float32s())), before)
		_, err = shard.StateDictLoad(r.ctx, engine, copied, nil, false)
		check(err)
		_, err = shard.StateDictLoad(r.ctx, engine, state, nil, false)
		expectError(t, err, shard.FailedPrecondition, "no longer valid")
	})
}

func TestAStateDictOfTheProgramIsLoadedFromRank0(t *testing.T) {
	onRanks(t, 2, "&direct=0", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 3})
		defer engine.Close()
		var state *shard.StateDict
		if r.comm.Rank() == 0 {
			state = must(shard.StateDictCreate())
			defer state.Close()
			for b := 0; b < blocks; b++ {
				values := make([]float32, weightNumel)
				for i := range values {
					values[i] = float32(100*b + i)
				}
				check(state.Add(fmt.Sprintf("block%d.weight", b), shard.F32, []int64{64, 96}, shard.Bytes(values)))
				check(state.Add(fmt.Sprintf("block%d.bias", b), shard.F32, []int64{3}, shard.Bytes(values[:3])))
			}
			check(state.AddNumber("param_groups.block0.weight.lr", 0.125))
			check(state.AddNumber("param_groups.block0.weight.lr", 0.5))
			expectEqual(t, must(state.NumNumbers()), 1)
			key, value, err := state.Number(0)
			check(err)
			expectEqual(t, fmt.Sprint(key, ": ", value), "param_groups.block0.weight.lr: 0.5")
			expectError(t, state.Add("short", shard.F32, []int64{3}, nil), shard.InvalidArgument)
			_, err = state.Find("short")
			expectError(t, err, shard.NotFound, "short")
		}
		report := must(shard.StateDictLoad(r.ctx, engine, state, &shard.LoadOptions{
			Filter: shard.StateFilter{Content: shard.ContentModel}}, true))
		expectEqual(t, report.Loaded, numParams)
		params := r.paramsOf(engine)
		expectEqual(t, params[2*(weightNumel+biasNumel)+1], 201)
	})
}
