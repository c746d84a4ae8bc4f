// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"libshard/shard"
)

// tiedModel makes a model with a tied, a frozen and two ignored parameters, and
// a group. Parameter 0 is tied.weight, or head.weight.
func tiedModel() *shard.Model {
	model := must(shard.ModelCreate("Net"))
	tied := must(model.AddModule(0, "tied", "Embedding"))
	head := must(model.AddModule(0, "head", "Linear"))
	extra := must(model.AddModule(0, "extra", "Extra"))
	weight := must(model.AddParam(tied, "weight", shard.F32, []int64{4, 2}))
	check(model.Tie(head, "weight", weight))
	bias := must(model.AddParam(head, "bias", shard.F32, []int64{5}))
	scale := must(model.AddParam(head, "scale", shard.F32, nil))
	check(model.Freeze(scale))
	check(model.IgnoreParam(must(model.AddParam(head, "unused", shard.F32, nil))))
	must(model.AddParam(extra, "weight", shard.F32, nil))
	check(model.IgnoreModule(extra))
	expectGroup := must(model.AddParamGroup("?weight_decay=0", []shard.ParamID{bias}))
	if expectGroup != 1 {
		panic("the first group is not 1")
	}
	return model
}

func TestAPlanSaysWhereEverythingIs(t *testing.T) {
	defer catch(t)
	model := tiedModel()
	defer model.Close()
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 3, Stage: 2}))
	defer plan.Close()
	info := must(plan.Info())
	expectEqual(t, info.Stage, 2)
	expectEqual(t, info.WorldSize, 3)
	expectEqual(t, info.NumParams, 5)
	expectEqual(t, info.NumModules, 4)
	expectEqual(t, info.NumGroups, 2)

	param := must(plan.FindParam("head.weight"))
	expectEqual(t, param, 0)
	expectEqual(t, must(plan.ParamName(param, 0)), "tied.weight")
	expectEqual(t, must(plan.ParamName(param, 1)), "head.weight")
	weight := must(plan.ParamInfo(param))
	expectEqual(t, fmt.Sprint(weight.Shape, weight.DType, weight.NumNames, weight.Trainable), "[4 2] f32 2 true")
	expectEqual(t, must(plan.ParamInfo(1)).Group, 1)
	expectEqual(t, must(plan.ParamInfo(2)).Trainable, false)
	_, err := plan.ParamInfo(3)
	expectError(t, err, shard.FailedPrecondition, "ignored")
	_, err = plan.FindParam("head.none")
	expectError(t, err, shard.NotFound, "head")

	buffer := must(plan.BufferInfo(weight.Buffer))
	expectEqual(t, buffer.FullNumel, 8)
	expectEqual(t, buffer.ShardNumel*3, buffer.FullNumel+buffer.NumPadded)
	expectEqual(t, buffer.GradDType, shard.F32)
	expectEqual(t, must(plan.BufferParam(weight.Buffer, 0)), param)
	last := must(plan.RankRange(weight.Buffer, 2))
	expectEqual(t, last.Begin, 2*buffer.ShardNumel)
	expectEqual(t, last.NumPadded, buffer.ShardNumel)
	slices := must(plan.Slices(weight.Buffer, 3, 100))
	if !reflect.DeepEqual(slices, []shard.Slice{{Begin: 3, Numel: 5, ParamBegin: 3, Param: param}}) {
		t.Errorf("%v", slices)
	}
	_, err = plan.Slices(weight.Buffer, -1, 1)
	expectError(t, err, shard.InvalidArgument, "-1")
	_, err = plan.RankRange(weight.Buffer, 1<<40)
	expectError(t, err, shard.InvalidArgument, "rank 1099511627776")

	flat := make([]float32, buffer.FullNumel)
	view := must(shard.ParamView(plan, param, flat))
	view[7] = 5
	expectEqual(t, flat[weight.Begin+7], 5)
	_, err = shard.ParamView(plan, param, flat[1:])
	expectError(t, err, shard.InvalidArgument)
	_, err = shard.ParamView(plan, param, make([]uint16, 8))
	expectError(t, err, shard.InvalidArgument, "f32", "uint16")

	name := must(plan.NameInfo(1))
	module := must(plan.ModuleInfo(2))
	expectEqual(t, name, shard.NameInfo{Param: 0, Module: 2, Index: 1})
	expectEqual(t, module, shard.ModuleInfo{Module: 2, Parent: 0, Depth: 1, FirstName: 1, NumNames: 3})
	expectEqual(t, must(plan.ModuleInfo(3)).Ignored, true)
	expectEqual(t, must(plan.ModuleName(2)), "head")
	expectEqual(t, must(plan.ModuleClass(2)), "Linear")
}

func TestAPlanIsTextAndBytes(t *testing.T) {
	defer catch(t)
	model := tiedModel()
	defer model.Close()
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{WorldSize: 2}))
	defer plan.Close()
	if text := must(plan.Text()); !strings.Contains(text, "world size 2") {
		t.Error(text)
	}
	if text := must(plan.JSON()); text[0] != '{' || text[len(text)-1] != '}' {
		t.Error(text)
	}
	if warnings := must(plan.Warnings()); !strings.Contains(warnings, "frozen") {
		t.Errorf("no warning of a unit with frozen parameters: %q", warnings)
	}
	data := must(plan.Encode())
	decoded := must(shard.PlanDecode(data))
	defer decoded.Close()
	expectEqual(t, must(decoded.Info()), must(plan.Info()))
	memory := must(plan.Memory(&shard.Placement{RanksPerHost: 1}))
	expectEqual(t, must(decoded.Memory(&shard.Placement{SeparateMemory: true})).ParamBytes, memory.ParamBytes)
	_, err := plan.Memory(&shard.Placement{Device: "abacus"})
	expectError(t, err, shard.InvalidArgument, "abacus")

	data[len(data)/2] ^= 1
	_, err = shard.PlanDecode(data)
	expectError(t, err, shard.Corrupt)
	_, err = shard.PlanDecode(nil)
	expectError(t, err, shard.Corrupt)
}

func TestAPlanIsMadeByItsOptions(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	plan := must(shard.PlanCreate(model, &shard.PlanOptions{
		WorldSize: 2,
		Partition: shard.PartitionManual,
		Owners:    []int32{1, 1, 1, 1, 0, 0},
		Wrap:      "class?names=Block",
	}))
	defer plan.Close()
	expectEqual(t, must(plan.ParamInfo(0)).FirstRank, 1)
	expectEqual(t, must(plan.ParamInfo(5)).LastRank, 0)

	for _, wrong := range []struct {
		options shard.PlanOptions
		words   string
	}{
		{shard.PlanOptions{WorldSize: 1, Stage: 4}, "stage"},
		{shard.PlanOptions{WorldSize: 1 << 40}, "WorldSize 1099511627776"},
		{shard.PlanOptions{WorldSize: 1, Optimizer: "adamx"}, "adamx"},
		{shard.PlanOptions{WorldSize: 1, Optimizer: "adamw\x00?"}, "NUL at byte 5"},
		{shard.PlanOptions{WorldSize: 1, Partition: 77}, "77"},
		{shard.PlanOptions{WorldSize: 1, Wrap: "class?names=Block", ParamDType: shard.I8}, "param_dtype"},
		{shard.PlanOptions{WorldSize: 1, Partition: shard.PartitionManual, Owners: []int32{0}}, "owners"},
	} {
		_, err := shard.PlanCreate(model, &wrong.options)
		expectError(t, err, shard.InvalidArgument, wrong.words)
	}
	_, err := shard.PlanCreate(nil, nil)
	expectError(t, err, shard.InvalidArgument, "model is nil")
}

func TestAModelRefusesWhatIsWrong(t *testing.T) {
	defer catch(t)
	model := declare()
	defer model.Close()
	_, err := model.AddParam(1, "weight", shard.F32, nil)
	expectError(t, err, shard.AlreadyExists, "weight")
	_, err = model.AddParam(1, "a.b", shard.F32, nil)
	expectError(t, err, shard.InvalidArgument)
	_, err = model.AddParam(1, "a\x00", shard.F32, nil)
	expectError(t, err, shard.InvalidArgument, "NUL at byte 1")
	_, err = model.AddModule(0, "a\xff", "")
	expectError(t, err, shard.InvalidArgument, "UTF-8")
	_, err = model.AddModule(0, "a", "class\xff")
	expectError(t, err, shard.InvalidArgument, "UTF-8")
	_, err = model.AddParam(1, "a", 99, nil)
	expectError(t, err, shard.InvalidArgument, "99")
	_, err = model.AddParam(1, "a", shard.F32, []int64{-2})
	expectError(t, err, shard.InvalidArgument, "-2")
	_, err = model.AddParam(1, "a", shard.F32, make([]int64, shard.MaxDims+1))
	expectError(t, err, shard.InvalidArgument, "9")
	_, err = model.AddModule(99, "a", "")
	expectError(t, err, shard.InvalidArgument, "99")
	_, err = model.AddBuffer(0, "a", shard.Q8, nil, true)
	expectError(t, err, shard.InvalidArgument)
	_, err = model.AddParamGroup("", nil)
	expectError(t, err, shard.InvalidArgument)
	expectError(t, model.Freeze(99), shard.InvalidArgument, "99")
	expectError(t, model.Tie(0, "a", -1), shard.InvalidArgument, "-1")
}

func TestNamesAndTypesAreThoseOfTheLibrary(t *testing.T) {
	defer catch(t)
	expectEqual(t, must(shard.CleanTensorName("module._orig_mod.a.weight", true)), "a.weight")
	_, err := shard.CleanTensorName("a\x00", false)
	expectError(t, err, shard.InvalidArgument, "NUL")
	expectEqual(t, shard.BF16.String(), "bf16")
	expectEqual(t, shard.DType(99).String(), "unknown")
	expectEqual(t, shard.BF16.Size(), 2)
	expectEqual(t, shard.Opaque.Size(), 0)
	expectEqual(t, shard.RankLost.String(), "RANK_LOST")
	expectEqual(t, shard.CodeOf(nil), shard.OK)
	expectEqual(t, shard.CodeOf(fmt.Errorf("in a loop: %w", err)), shard.InvalidArgument)
	expectEqual(t, shard.CodeOf(errStop), shard.Unknown)
}
