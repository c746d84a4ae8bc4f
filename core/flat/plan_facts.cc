// SPDX-License-Identifier: Apache-2.0
//
// Describes a plan as facts, for ranks whose fingerprints differ. Takes memory
// for a path and a number per parameter, for any model.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/facts.h"
#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/flat/plan_fields.h"
#include "core/flat/report.h"
#include "core/model/walk.h"

namespace shard {

namespace {

void AddOptions(const PlanOptions& options, FactSink* sink) {
  VisitAgreedOptions(options, [&](std::string_view name, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, Partition>) {
      sink->Add("", name, PartitionName(value));
    } else if constexpr (std::is_same_v<Value, DType>) {
      sink->Add("", name, DTypeName(value));
    } else if constexpr (std::is_same_v<Value, Masters>) {
      sink->Add("", name, MastersName(value));
    } else {
      sink->Add("", name, value);
    }
  });
  for (size_t g = 0; g < options.groups.size(); ++g) {
    const GroupOptions& group = options.groups[g];
    const std::string subject = StrCat("param group ", g);
    sink->AddSpec(subject, "optimizer", group.optimizer);
    for (size_t s = 0; s < group.states.size(); ++s) {
      const StateTensor& state = group.states[s];
      sink->Add(subject, StrCat("state ", s),
                StrCat(state.name, " in ", DTypeName(state.dtype)));
    }
    sink->Add(subject, "number of states", group.states.size());
  }
  sink->Add("", "number of param groups", options.groups.size());
}

// Walks a model and provides the path of each module and parameter.
class PathWalk {
 public:
  explicit PathWalk(const Model& model) : model_(model) {}

  // Calls `module(id, depth)` and `reference(index, param)`, which may call
  // Named; ignored modules and names are left out.
  template <typename OnModule, typename OnReference>
  void Walk(const OnModule& module, const OnReference& reference) {
    WalkModel(
        model_,
        [&](ModuleId id, int depth) {
          const Model::Module& at = model_.modules()[static_cast<size_t>(id)];
          if (at.ignored) return false;
          ends_.resize(static_cast<size_t>(depth));
          Descend(at.name);
          ends_.push_back(path_.size());
          module(id, depth);
          return true;
        },
        [&](int32_t index) {
          const Model::Reference& at =
              model_.references()[static_cast<size_t>(index)];
          if (model_.params()[static_cast<size_t>(at.param)].ignored) return;
          Descend(at.name);
          reference(index, at.param);
        });
  }

  // Returns the same as Named for a host tensor of the module that the walk has
  // just entered. Valid until the next call.
  std::string_view NamedHere(std::string_view kind, const std::string& name) {
    Descend(name);
    return Named(kind);
  }

  // Returns `kind` and the path: "parameter 'layer.weight'". Shortens a path
  // longer than people read to its end, with the whole last name: a tree may
  // have any depth, and the cost of its paths must not grow with the square of
  // it. Valid until the next call.
  std::string_view Named(std::string_view kind) {
    constexpr size_t kLongest = 512;
    const size_t shown = std::max(kLongest, last_bytes_);
    const size_t cut = path_.size() > shown ? path_.size() - shown : 0;
    named_ = kind;
    StrAppend(&named_, cut > 0 ? " '..." : " '",
              std::string_view(path_).substr(cut), "'");
    return named_;
  }

 private:
  void Descend(const std::string& name) {
    path_.resize(ends_.empty() ? 0 : ends_.back());
    StrAppend(&path_, path_.empty() ? "" : ".", name);
    last_bytes_ = name.size();
  }

  const Model& model_;
  std::string path_;
  size_t last_bytes_ = 0;  // Bytes of the path's last name.
  std::string named_;
  // The lengths of the paths of the modules around it.
  std::vector<size_t> ends_;
};

void AddModel(const Plan& plan, FactSink* sink) {
  const Model& model = plan.model();
  std::vector<int32_t> primary(model.params().size(), -1);
  PathWalk walk(model);
  int64_t entries = 0;
  std::string name;
  const auto add_entry = [&](std::string_view value,
                             std::string_view note = "") {
    name.clear();
    StrAppend(&name, "entry ", entries++, " of the model");
    sink->Take({"", name, value, note});
  };
  walk.Walk(
      [&](ModuleId id, int depth) {
        const std::string_view subject =
            depth == 0 ? "the root module" : walk.Named("module");
        add_entry(subject);
        sink->Add(subject, "depth", depth);
        sink->Add(subject, "unit of its own", plan.UnitAt(id) >= 0);
      },
      [&](int32_t reference, ParamId param) {
        const std::string_view subject = walk.Named("parameter");
        int32_t& first = primary[static_cast<size_t>(param)];
        if (first >= 0) {
          // Named by position, because each rank has ids of its own.
          add_entry(StrCat(subject, ", tied to parameter number ",
                           plan.place(param).position),
                    StrCat("'", model.ReferenceFqn(first), "'"));
          return;
        }
        first = reference;
        const Model::Param& info = model.params()[static_cast<size_t>(param)];
        add_entry(subject);
        sink->Add(subject, "dtype", DTypeName(info.dtype));
        sink->Add(subject, "shape", FormatList(info.shape));
        sink->Add(subject, "trainable", info.trainable);
        sink->Add(subject, "param group", info.group);
      });
  add_entry("the end");
}

void AddHostTensors(const Plan& plan, FactSink* sink) {
  const Model& model = plan.model();
  PathWalk walk(model);
  size_t position = 0;
  walk.Walk(
      [&](ModuleId module, int) {
        for (const HostTensorId id :
             model.modules()[static_cast<size_t>(module)].host_tensors) {
          const Model::HostTensor& tensor =
              model.host_tensors()[static_cast<size_t>(id)];
          const std::string_view subject =
              walk.NamedHere("buffer", tensor.name);
          sink->Add("", StrCat("buffer ", position++, " of the model"),
                    subject);
          sink->Add(subject, "dtype", ElementTypeName(tensor.type));
          sink->Add(subject, "shape", FormatList(tensor.shape));
          sink->Add(subject, "persistent", tensor.persistent);
        }
      },
      [](int32_t, ParamId) {});
  sink->Add("", StrCat("buffer ", position, " of the model"), "none");
}

// Adds all places. They follow from the other facts, except with manual owners.
void AddPlaces(const Plan& plan, FactSink* sink) {
  PathWalk walk(plan.model());
  std::vector<bool> seen(plan.model().params().size());
  walk.Walk([](ModuleId, int) {},
            [&](int32_t, ParamId param) {
              const auto p = static_cast<size_t>(param);
              if (seen[p]) return;
              seen[p] = true;
              const ParamPlace& place = plan.places()[p];
              const std::string_view subject = walk.Named("parameter");
              if (plan.model().params()[p].numel > 0) {
                sink->Add(
                    subject, "first owner",
                    StrCat("rank ", plan.OwnerOf(place.buffer, place.offset)));
              }
              sink->Add(subject, "offset", place.offset);
            });
  for (size_t b = 0; b < plan.buffers().size(); ++b) {
    sink->Add(StrCat("flat buffer ", b), "elements per rank",
              plan.buffers()[b].layout.shard_numel());
  }
}

}  // namespace

void Plan::Describe(FactSink* sink) const {
  AddOptions(options_, sink);
  AddModel(*this, sink);
  AddHostTensors(*this, sink);
  AddPlaces(*this, sink);
}

}  // namespace shard
