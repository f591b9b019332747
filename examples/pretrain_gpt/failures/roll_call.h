// examples/pretrain_gpt/failures/roll_call.h
//
// Before anything else every rank of a run says who it is, and waits for all others to have done so.
//
// All of it throws RunError(kStart).
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/failures/board.h"
#include "examples/pretrain_gpt/failures/process_identity.h"

namespace pretrain_gpt {

struct Enrolment {
  int rank = 0;
  int world_size = 1;
  ProcessIdentity process;
};

// Throws where another process has this rank: "[RANK] must be a process's own, got 1 for process 12 on a and for
// process 13 on b". Does not wait.
void enrol(Board& board, const Enrolment& mine);

// The processes of all ranks, by rank. Throws where ranks differ about their number, and where some are not there after
// `patience`, naming them. `pause` is called between looks and may sleep.
std::vector<ProcessIdentity> wait_for_all(Board& board, const Enrolment& mine, std::chrono::milliseconds patience,
                                          const std::function<void()>& pause);

}  // namespace pretrain_gpt
