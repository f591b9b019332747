// plugin/runtime/device_claim.h
//
// Which accelerator each rank works on. Two ranks on one device end in NCCL's own abort, whose text names neither: it
// is refused here, before a group is made.
#pragma once

#include <string>
#include <vector>

namespace dualpipe {

struct DeviceClaim {
  std::string machine;  // Of one boot of one machine.
  int device = 0;       // As the rank counts its visible ones.
  int visible = 1;
  std::string mask;  // Which ones are visible (CUDA_VISIBLE_DEVICES); indices of different masks do not compare.

  friend bool operator==(const DeviceClaim&, const DeviceClaim&) = default;
};

// Of this process, for a device index and the number of visible devices.
DeviceClaim claim_device(int device, int visible);

std::string encode(const DeviceClaim& claim);
DeviceClaim decode_claim(const std::string& text);

// By rank. Throws ScheduleError: "[nccl] rank 1 wants device 0 but only 1 is visible, and rank 0 has it; ...", or as
// device_of() where a rank wants one that it does not see.
void check_claims(const std::vector<DeviceClaim>& claims);

// The device of a rank by its number on the machine (LOCAL_RANK, SLURM_LOCALID). Throws ScheduleError: "[device] rank 5
// wants device 1 but only 1 is visible; ..."
int device_of(int rank, int local_rank, int visible);

}  // namespace dualpipe
