// SPDX-License-Identifier: Apache-2.0
//
// PlanAnswers: the answers of a plan to all of its accessors, as text: its
// decisions, the model with its ids, and everything that is printed. kDecided
// leaves out classes and the text of the wrap policy, which decide nothing once
// the units are known.
// the text of the wrap policy.

#ifndef SHARD_TESTS_CORE_PLAN_FILE_PLAN_ANSWERS_H_
#define SHARD_TESTS_CORE_PLAN_FILE_PLAN_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/base/element_type.h"
#include "core/base/facts.h"
#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/flat/plan_fields.h"

namespace shard {

class PlanAnswers final : public FactSink {
 public:
  enum Which { kAll, kDecided };

  explicit PlanAnswers(const Plan& plan, Which which = kAll)
      : plan_(plan), all_(which == kAll) {
    Line("fingerprint", plan.fingerprint());
    AddOptions();
    AddModel();
    AddDecisions();
    plan.Describe(this);
    text += plan.ToText();
    if (all_) text += plan.ToJson();
  }

  void Take(const Fact& fact) override {
    StrAppend(&text, TitleOf(fact), ": ", fact.value, fact.note, "\n");
  }

  std::string text;

 private:
  template <typename... Values>
  void Line(const Values&... values) {
    ((StrAppend(&text, values, " ")), ...);
    text += "\n";
  }

  void AddOptions() {
    const PlanOptions& options = plan_.options();
    VisitAgreedOptions(options, [&](const char* name, const auto& value) {
      using Value = std::decay_t<decltype(value)>;
      if constexpr (std::is_enum_v<Value>) {
        Line(name, static_cast<int32_t>(value));
      } else {
        Line(name, value);
      }
    });
    if (all_) Line("wrap", options.wrap.text());
    for (const std::string& name : options.f32_classes) Line("f32", name);
    if (options.partition == Partition::kManual) {
      for (const int32_t owner : options.manual_owners) Line("owner", owner);
    }
    for (const GroupOptions& group : options.groups) {
      Line("group", group.optimizer, reinterpret_cast<uintptr_t>(group.tensor));
      AddStates(group.states);
    }
  }

  void AddStates(const std::vector<StateTensor>& states) {
    for (const StateTensor& state : states) {
      Line("state", state.name, DTypeName(state.dtype));
    }
  }

  void AddModel() {
    const Model& model = plan_.model();
    for (size_t i = 0; i < model.modules().size(); ++i) {
      const Model::Module& module = model.modules()[i];
      const auto id = static_cast<ModuleId>(i);
      Line("module", module.parent, module.name, module.ignored,
           module.fqn_bytes, plan_.UnitAt(id), model.ModuleFqn(id));
      if (all_) Line("class", module.class_name);
      for (const ModuleId child : module.children) Line("child", child);
      for (const int32_t name : module.references) Line("holds", name);
      for (const HostTensorId held : module.host_tensors) Line("host", held);
    }
    for (size_t i = 0; i < model.host_tensors().size(); ++i) {
      const Model::HostTensor& tensor = model.host_tensors()[i];
      Line("host tensor", tensor.module, tensor.name,
           ElementTypeName(tensor.type), FormatList(tensor.shape), tensor.numel,
           tensor.persistent, plan_.host_tensors().offsets[i]);
    }
    for (size_t i = 0; i < model.params().size(); ++i) {
      const Model::Param& param = model.params()[i];
      Line("param", DTypeName(param.dtype), FormatList(param.shape),
           param.numel, param.trainable, param.ignored, param.group,
           plan_.UnitOf(static_cast<ParamId>(i)));
    }
    for (size_t i = 0; i < model.references().size(); ++i) {
      const Model::Reference& reference = model.references()[i];
      const std::string fqn = model.ReferenceFqn(static_cast<int32_t>(i));
      const auto found = model.FindParam(fqn);
      Line("name", reference.module, reference.param, reference.name, fqn,
           found.ok() ? *found : -1);
    }
    for (const std::string& fqn : model.ParamFqns()) Line("fqn", fqn);
  }

  void AddLayout(const FlatLayout& layout) {
    Line("layout", layout.world_size(), layout.shard_numel(), layout.numel());
    for (const Slot& slot : layout.slots()) {
      Line("slot", slot.param, slot.offset, slot.numel);
    }
  }

  void AddDecisions() {
    for (const UnitPlan& unit : plan_.units()) {
      Line("unit", unit.module, plan_.model().ModuleFqn(unit.module),
           unit.parent, unit.depth);
      for (const int32_t buffer : unit.buffers) Line("of", buffer);
    }
    for (const FlatBufferPlan& buffer : plan_.buffers()) {
      Line("buffer", buffer.unit, DTypeName(buffer.dtype), buffer.trainable);
      AddLayout(buffer.layout);
      if (!buffer.trainable) continue;
      Line("stepped", buffer.group, DTypeName(buffer.grad_dtype),
           DTypeName(buffer.sum_dtype), buffer.has_masters);
      for (size_t s = 0; s < buffer.states.size(); ++s) {
        AddStates({buffer.states[s].tensor});
        AddLayout(buffer.StateLayout(s));
      }
    }
    for (const ParamPlace& place : plan_.places()) {
      Line("place", place.buffer, place.position, place.offset);
    }
    Line("stored", plan_.NumStored(), plan_.workspace_numel(),
         plan_.gpu_workspace_numel(), plan_.shards_grads(),
         plan_.shards_params(), plan_.HeldRanges());
    for (const SlotPlan& slot : plan_.param_slots())
      Line(slot.count, slot.bytes);
    for (const SlotPlan& slot : plan_.grad_slots())
      Line(slot.count, slot.bytes);
    for (const std::string& warning : plan_.Warnings()) Line(warning);
    for (const bool shared : {false, true}) {
      const MemoryReport memory = plan_.Memory(shared);
      Line("memory", memory.param_bytes, memory.grad_bytes, memory.state_bytes,
           memory.workspace_bytes, memory.transient_bytes,
           memory.host_tensor_bytes);
    }
  }

  const Plan& plan_;
  const bool all_;
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_PLAN_FILE_PLAN_ANSWERS_H_
