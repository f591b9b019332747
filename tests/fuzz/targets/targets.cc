#include "tests/fuzz/targets.h"

namespace dualpipe::fuzz {

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {{"read_schedule_csv", read_schedule_csv},
                                        {"read_schedule_cell", read_schedule_cell},
                                        {"read_cost_file", read_cost_file},
                                        {"read_cost_spec", read_cost_spec},
                                        {"read_metrics", read_metrics},
                                        {"read_timelines", read_timelines},
                                        {"read_comparison", read_comparison},
                                        {"read_host_list", read_host_list},
                                        {"read_environment", read_environment},
                                        {"read_config", read_config},
                                        {"read_override", read_override},
                                        {"read_layer_times", read_layer_times},
                                        {"read_indexed_dataset", read_indexed_dataset},
                                        {"read_manifest", read_manifest},
                                        {"read_safetensors_header", read_safetensors_header},
                                        {"read_rings", read_rings}};
  return kTargets;
}

}  // namespace dualpipe::fuzz
