#include "examples/pretrain_gpt/host_list.h"

#include <fmt/format.h>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {

std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const std::size_t close = list.find(']', at);
    if (close == std::string_view::npos) {
      throw UserError("SLURM_JOB_NODELIST", fmt::format("must close its bracket, got '{}'; for example n[1-2]", list));
    }
    const std::string_view numbers = list.substr(at + 1, close - at - 1);
    host += numbers.substr(0, numbers.find_first_of(",-"));
    at = close + 1;
  }
  if (host.empty()) {
    throw UserError("SLURM_JOB_NODELIST", fmt::format("must name a host, got '{}'; for example n[1-2]", list));
  }
  return host;
}

}  // namespace pretrain_gpt
