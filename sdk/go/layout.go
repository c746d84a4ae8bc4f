// SPDX-License-Identifier: Apache-2.0

package shard

// #include <stdlib.h>
// #include "shard/shard.h"
//
// // Computes where shard_plan_param_view points, in bytes from `data`, without
// // the address of Go memory: the function reads nothing there.
// static shard_error* shard_go_view_offset(const shard_plan* plan,
//                                          int32_t param, int64_t numel,
//                                          int64_t* offset) {
//   char* const data = (char*)SHARD_MAX_DIMS;
//   void* view = data;
//   shard_error* const error =
//       shard_plan_param_view(plan, param, data, numel, &view);
//   if (error == NULL) *offset = (char*)view - data;
//   return error;
// }
import "C"

// ParamInfo is where a parameter is, and of what kind.
type ParamInfo struct {
	Begin     int64 // Its first element, in its flat buffer.
	Numel     int64
	Shape     []int64
	DType     DType
	Trainable bool
	Group     GroupID
	Unit      UnitID
	Buffer    BufferID
	NumNames  int
	FirstRank int // The owner of its first element; -1 without elements.
	LastRank  int
}

// ParamInfo gets where a parameter is and how it is stored.
func (p *Plan) ParamInfo(param ParamID) (ParamInfo, error) {
	info := C.shard_param_info{struct_size: C.sizeof_shard_param_info}
	err := p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_param_info(plan, C.int32_t(param), &info)
	})
	if err != nil {
		return ParamInfo{}, err
	}
	return ParamInfo{
		Begin:     int64(info.begin),
		Numel:     int64(info.numel),
		Shape:     shapeOf(&info.shape, info.ndim),
		DType:     DType(info.dtype),
		Trainable: info.trainable != 0,
		Group:     GroupID(info.group),
		Unit:      UnitID(info.unit),
		Buffer:    BufferID(info.buffer),
		NumNames:  int(info.num_names),
		FirstRank: int(info.first_rank),
		LastRank:  int(info.last_rank),
	}, nil
}

// BufferInfo is the size and the kind of a flat buffer.
type BufferInfo struct {
	FullNumel  int64 // Elements of its parameters, without padding.
	NumPadded  int64
	ShardNumel int64 // Elements of each rank.
	NumParams  int
	Unit       UnitID
	DType      DType
	Trainable  bool
	Group      GroupID // -1: frozen.
	GradDType  DType   // 0: frozen.
}

// BufferInfo gets the size and the kind of a flat buffer.
func (p *Plan) BufferInfo(buffer BufferID) (BufferInfo, error) {
	info := C.shard_buffer_info{struct_size: C.sizeof_shard_buffer_info}
	err := p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_buffer_info(plan, C.int32_t(buffer), &info)
	})
	if err != nil {
		return BufferInfo{}, err
	}
	return BufferInfo{
		FullNumel:  int64(info.full_numel),
		NumPadded:  int64(info.num_padded),
		ShardNumel: int64(info.shard_numel),
		NumParams:  int(info.num_params),
		Unit:       UnitID(info.unit),
		DType:      DType(info.dtype),
		Trainable:  info.trainable != 0,
		Group:      GroupID(info.group),
		GradDType:  DType(info.grad_dtype),
	}, nil
}

// BufferParam gets the parameter at a place of the buffer's NumParams.
func (p *Plan) BufferParam(buffer BufferID, index int) (ParamID, error) {
	var in arguments
	var param C.int32_t
	at := in.int32("index", index)
	err := in.result(p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_buffer_param(plan, C.int32_t(buffer), at, &param)
	}))
	return ParamID(param), err
}

// Range is a range of a flat buffer.
type Range struct {
	Begin     int64
	Numel     int64
	NumPadded int64 // Elements among these that are no parameter's.
}

// RankRange gets the range of a flat buffer that a rank owns.
func (p *Plan) RankRange(buffer BufferID, rank int) (Range, error) {
	var in arguments
	got := C.shard_range{struct_size: C.sizeof_shard_range}
	of := in.int32("rank", rank)
	err := in.result(p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_rank_range(plan, C.int32_t(buffer), of, &got)
	}))
	if err != nil {
		return Range{}, err
	}
	return Range{int64(got.begin), int64(got.numel), int64(got.num_padded)}, nil
}

// Slice is the part of a parameter that is in some range of its buffer.
type Slice struct {
	Begin      int64 // In the flat buffer.
	Numel      int64
	ParamBegin int64 // The same, counted from the parameter's first element.
	Param      ParamID
}

// Slices gets the parts of parameters in numel elements of a flat buffer from
// begin on, by ascending offset. All other elements of the range are padding.
func (p *Plan) Slices(buffer BufferID, begin, numel int64) ([]Slice, error) {
	var found []Slice
	err := p.do(func(plan *C.shard_plan) *C.shard_error {
		var count C.size_t
		err := C.shard_plan_slices(plan, C.int32_t(buffer), C.int64_t(begin), C.int64_t(numel), nil, 0, &count)
		if err != nil || count == 0 {
			return err
		}
		slices := make([]C.shard_slice, count)
		slices[0].struct_size = C.sizeof_shard_slice
		err = C.shard_plan_slices(plan, C.int32_t(buffer), C.int64_t(begin), C.int64_t(numel),
			&slices[0], count, &count)
		if err != nil {
			return err
		}
		for _, s := range slices {
			found = append(found, Slice{int64(s.begin), int64(s.numel), int64(s.param_begin), ParamID(s.param)})
		}
		return nil
	})
	return found, err
}

// ParamView gets the part that is the parameter in a program's own copy of its
// whole flat buffer, which has the elements of the buffer, with or without the
// padding behind the last parameter. Elements of bf16 and f16 are uint16.
func ParamView[T Element](plan *Plan, param ParamID, flat []T) ([]T, error) {
	if err := required("plan", plan); err != nil {
		return nil, err
	}
	info, err := plan.ParamInfo(param)
	if err != nil {
		return nil, err
	}
	if !holds[T](info.DType) {
		var zero T
		return nil, newError(InvalidArgument, "parameter %d is %s, whose buffer is no slice of %T",
			param, info.DType, zero)
	}
	var offset C.int64_t
	err = plan.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_go_view_offset(plan, C.int32_t(param), C.int64_t(len(flat)), &offset)
	})
	if err != nil {
		return nil, err
	}
	begin := int64(offset) / int64(info.DType.Size())
	return flat[begin : begin+info.Numel : begin+info.Numel], nil
}

// NameInfo is a name of a parameter.
type NameInfo struct {
	Param  ParamID
	Module ModuleID // The module that it is in.
	Index  int      // Among the parameter's names: 0 its FQN, else an alias.
}

// NameInfo gets the parameter and the module of a name; names are numbered in
// module-walk order.
func (p *Plan) NameInfo(name int) (NameInfo, error) {
	var in arguments
	info := C.shard_name_info{struct_size: C.sizeof_shard_name_info}
	number := in.int32("name", name)
	err := in.result(p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_name_info(plan, number, &info)
	}))
	if err != nil {
		return NameInfo{}, err
	}
	return NameInfo{ParamID(info.param), ModuleID(info.module), int(info.index)}, nil
}

// ParamName gets the parameter's FQN, with index 0, or an alias.
func (p *Plan) ParamName(param ParamID, index int) (string, error) {
	var in arguments
	at := in.int32("index", index)
	name, err := p.text(func(plan *C.shard_plan, text **C.char) *C.shard_error {
		return C.shard_plan_param_name(plan, C.int32_t(param), at, text)
	})
	return name, in.result(err)
}

// FindParam finds the parameter that has this FQN or alias.
func (p *Plan) FindParam(fqn string) (ParamID, error) {
	var in arguments
	defer in.free()
	var param C.int32_t
	text := in.text("fqn", fqn)
	err := in.result(p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_find_param(plan, text, &param)
	}))
	return ParamID(param), err
}

// ModuleInfo is a module of the plan's model.
type ModuleInfo struct {
	Module    ModuleID
	Parent    ModuleID // -1: the root.
	Depth     int      // 0: the root.
	Ignored   bool
	FirstName int // The first of its NumNames names, in a row.
	NumNames  int
}

// ModuleInfo gets the module at a place of the module walk: pre-order, the root
// first.
func (p *Plan) ModuleInfo(index int) (ModuleInfo, error) {
	var in arguments
	info := C.shard_module_info{struct_size: C.sizeof_shard_module_info}
	at := in.int32("index", index)
	err := in.result(p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_module_info(plan, at, &info)
	}))
	if err != nil {
		return ModuleInfo{}, err
	}
	return ModuleInfo{
		Module:    ModuleID(info.module),
		Parent:    ModuleID(info.parent),
		Depth:     int(info.depth),
		Ignored:   info.ignored != 0,
		FirstName: int(info.first_name),
		NumNames:  int(info.num_names),
	}, nil
}

// ModuleName gets the FQN of a module; "" is the root's.
func (p *Plan) ModuleName(module ModuleID) (string, error) {
	return p.text(func(plan *C.shard_plan, text **C.char) *C.shard_error {
		return C.shard_plan_module_name(plan, C.int32_t(module), text)
	})
}

// ModuleClass gets the class name of a module.
func (p *Plan) ModuleClass(module ModuleID) (string, error) {
	return p.text(func(plan *C.shard_plan, text **C.char) *C.shard_error {
		return C.shard_plan_module_class(plan, C.int32_t(module), text)
	})
}

// ModelBufferInfo is a buffer of the plan's model, as Model.AddBuffer declared
// it.
type ModelBufferInfo struct {
	Numel      int64
	Shape      []int64
	DType      DType
	Module     ModuleID
	Persistent bool
}

// ModelBufferInfo gets the declaration of a buffer of the model.
func (p *Plan) ModelBufferInfo(buffer ModelBufferID) (ModelBufferInfo, error) {
	info := C.shard_model_buffer_info{struct_size: C.sizeof_shard_model_buffer_info}
	err := p.do(func(plan *C.shard_plan) *C.shard_error {
		return C.shard_plan_model_buffer_info(plan, C.int32_t(buffer), &info)
	})
	if err != nil {
		return ModelBufferInfo{}, err
	}
	return ModelBufferInfo{
		Numel:      int64(info.numel),
		Shape:      shapeOf(&info.shape, info.ndim),
		DType:      DType(info.dtype),
		Module:     ModuleID(info.module),
		Persistent: info.persistent != 0,
	}, nil
}

// ModelBufferName gets the FQN of a buffer of the model.
func (p *Plan) ModelBufferName(buffer ModelBufferID) (string, error) {
	return p.text(func(plan *C.shard_plan, text **C.char) *C.shard_error {
		return C.shard_plan_model_buffer_name(plan, C.int32_t(buffer), text)
	})
}

// CleanTensorName removes from a name the components that wrappers leave in it,
// and with stripLeadingModule also one leading "module.".
func CleanTensorName(name string, stripLeadingModule bool) (string, error) {
	if err := checkLibrary(); err != nil {
		return "", err
	}
	var in arguments
	defer in.free()
	text := in.text("name", name)
	cleaned, err := readText(func(buffer *C.char, capacity C.size_t, length *C.size_t) error {
		return takeError(C.shard_clean_tensor_name(text, flag(stripLeadingModule), buffer, capacity, length))
	})
	return cleaned, in.result(err)
}
