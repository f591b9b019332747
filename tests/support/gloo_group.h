// tests/support/gloo_group.h
//
// A Gloo process group on the loopback interface, built in plain C++ as a host would.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace dualpipe {

// Blocks until all `size` ranks have called it with the same store.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                       std::chrono::milliseconds timeout);

}  // namespace dualpipe
