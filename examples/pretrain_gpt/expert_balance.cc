#include "examples/pretrain_gpt/expert_balance.h"

#include <map>
#include <string>

#include "examples/pretrain_gpt/model/moe/router.h"

namespace pretrain_gpt {
namespace {

// In the order of their names, which is the same on mirrors.
std::vector<Router*> routers_of(const std::vector<GptChunk*>& chunks) {
  std::map<std::string, Router*> by_name;
  for (const GptChunk* chunk : chunks) {
    for (const auto& module : chunk->named_modules("", /*include_self=*/false)) {
      if (auto* router = dynamic_cast<Router*>(module.value().get())) {
        by_name.emplace(module.key(), router);
      }
    }
  }
  std::vector<Router*> routers;
  for (const auto& [name, router] : by_name) {
    routers.push_back(router);
  }
  return routers;
}

}  // namespace

void balance_experts(const Config& config, const std::vector<GptChunk*>& chunks, const ProcessGroups& groups,
                     bool skipped) {
  const std::vector<Router*> routers = routers_of(chunks);
  if (config.moe_router_enable_expert_bias && !skipped) {
    update_expert_bias(routers, {{groups.of(GroupKind::kData)}});
    return;
  }
  for (Router* router : routers) {
    router->reset_counters();
  }
}

}  // namespace pretrain_gpt
