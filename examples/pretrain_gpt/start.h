// examples/pretrain_gpt/start.h
//
// How the ranks of a run come together: everybody is there once, watches over the others, and was told the same.
#pragma once

#include <chrono>

#include "examples/pretrain_gpt/agreement.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/failures/failure_watch.h"

namespace pretrain_gpt {

// Returns once all ranks are there and `watch` hears of them. Throws RunError(kStart) where one is there twice, is
// absent for `patience`, or counts other ranks than this one.
void meet(const Environment& environment, const Rendezvous& rendezvous, std::chrono::milliseconds patience,
          FailureWatch& watch);

// What all ranks have to agree about beside `known`: the versions of the program and of LibTorch.
KeyValues with_versions(KeyValues known);

// Collective. Throws UserError, the same on every rank, where a value differs. A few bytes per rank where none does.
void compare(const KeyValues& mine, const Environment& environment, c10d::Store& store);

// Tells the other ranks of a mistake in this one's own variables, as far as they leave it a way to.
void report_bad_environment(const std::exception& mistake);

}  // namespace pretrain_gpt
