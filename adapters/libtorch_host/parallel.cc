#include "adapters/libtorch_host/parallel.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

namespace dualpipe::libtorch_host {
namespace {

using pretrain_gpt::GroupKind;
using pretrain_gpt::ParameterLayout;
using pretrain_gpt::ProcessGroups;

using Layouts = std::map<std::string, ParameterLayout>;  // By logical name.

Layouts layouts_of(const std::vector<std::shared_ptr<GptStage>>& stages) {
  Layouts layouts;
  for (const auto& stage : stages) {
    for (const auto& item : stage->chunk().named_parameters()) {
      layouts.emplace(item.key(), stage->chunk().layout_of(item.key()));
    }
  }
  return layouts;
}

constexpr std::string_view kEmbedding = "embedding.weight";

// One end of the pipeline is here, and the other on a rank that is no mirror.
bool shares_embedding(const ProcessGroups& groups, const std::vector<std::shared_ptr<GptStage>>& stages) {
  const auto holds = [&stages](auto end) {
    return std::any_of(stages.begin(), stages.end(), [end](const auto& stage) { return stage->chunk().chunk().*end; });
  };
  return groups.pipeline()->getSize() > 1 &&
         holds(&pretrain_gpt::Chunk::has_embedding) != holds(&pretrain_gpt::Chunk::has_head);
}

}  // namespace

ParallelGroups parallel_groups(const ProcessGroups& groups, const std::vector<std::shared_ptr<GptStage>>& stages,
                               bool is_tied) {
  ParallelGroups parallel;
  if (groups.world_size() == groups.pipeline()->getSize()) return parallel;
  const Layouts layouts = layouts_of(stages);
  const auto add = [&parallel](const pretrain_gpt::Group& group, std::function<bool(const std::string&)> holds) {
    if (group) parallel.gradients.push_back({group, std::move(holds)});
  };
  if (is_tied && shares_embedding(groups, stages)) {
    add(groups.of(GroupKind::kEmbeddingData), [](const std::string& name) { return name == kEmbedding; });
  }
  // The kinds of parameters that have a group each, in one order on every rank.
  for (const ParameterLayout& kind :
       {ParameterLayout{}, ParameterLayout{.is_sequence_partial = true}, ParameterLayout{.is_expert = true}}) {
    add(groups.gradient_group(kind), [layouts, kind](const std::string& name) {
      const ParameterLayout& layout = layouts.at(name);
      return layout.is_expert == kind.is_expert && layout.is_sequence_partial == kind.is_sequence_partial;
    });
  }
  parallel.losses = groups.of(GroupKind::kData);
  parallel.world = groups.world();
  parallel.shard_of = [groups, layouts](const std::string& name) { return groups.part_of(layouts.at(name)); };
  return parallel;
}

}  // namespace dualpipe::libtorch_host
