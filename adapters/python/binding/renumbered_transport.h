// adapters/python/binding/renumbered_transport.h
//
// A transport whose ranks have other numbers: the reference's `rank_mapping`, by which rank g of a process group is
// rank mapping[g] of the pipeline.
#pragma once

#include <memory>
#include <vector>

#include "plugin/runtime/transport.h"

namespace dualpipe::python {

// Throws ScheduleError where `mapping` is no permutation of 0 .. size - 1.
std::shared_ptr<Transport> renumber(std::shared_ptr<Transport> transport, std::vector<int> mapping);

}  // namespace dualpipe::python
