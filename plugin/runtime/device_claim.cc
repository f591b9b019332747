#include "plugin/runtime/device_claim.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include <nlohmann/json.hpp>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kAdvice =
    "start at most one rank per device, and let CUDA_VISIBLE_DEVICES show a rank the devices of all ranks of its "
    "machine";

std::string visible_text(int visible) {
  return fmt::format("only {} {} visible", visible, visible == 1 ? "is" : "are");
}

}  // namespace

DeviceClaim claim_device(int device, int visible) {
  DeviceClaim claim{"", device, visible, ""};
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), claim.machine);
  if (const char* mask = std::getenv("CUDA_VISIBLE_DEVICES")) claim.mask = mask;
  return claim;
}

std::string encode(const DeviceClaim& claim) {
  return nlohmann::json({claim.machine, claim.device, claim.visible, claim.mask}).dump();
}

DeviceClaim decode_claim(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json.at(0), json.at(1), json.at(2), json.at(3)};
}

void check_claims(const std::vector<DeviceClaim>& claims) {
  for (std::size_t rank = 0; rank < claims.size(); ++rank) {
    device_of(static_cast<int>(rank), claims[rank].device, claims[rank].visible);
    for (std::size_t other = 0; other < rank; ++other) {
      if (!(claims[rank] == claims[other])) continue;
      throw ScheduleError("nccl", fmt::format("rank {} wants device {} but {}, and rank {} has it; {}", rank,
                                              claims[rank].device, visible_text(claims[rank].visible), other, kAdvice));
    }
  }
}

int device_of(int rank, int local_rank, int visible) {
  if (local_rank < visible) return local_rank;
  throw ScheduleError(
      "device", fmt::format("rank {} wants device {} but {}; {}", rank, local_rank, visible_text(visible), kAdvice));
}

}  // namespace dualpipe
