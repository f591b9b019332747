#include "plugin/analysis/memory_json.h"

namespace dualpipe::analysis {

nlohmann::ordered_json memory_json(const std::vector<RankMemory>& ranks) {
  if (ranks.empty()) {
    return nullptr;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RankMemory& rank : ranks) {
    list.push_back({{"parameters", rank.parameters},
                    {"gradients", rank.gradients},
                    {"optimizer", rank.optimizer},
                    {"activations", rank.activations},
                    {"total", rank.total()}});
  }
  return list;
}

}  // namespace dualpipe::analysis
