// tests/bench/executor/delayed_transport.h
//
// Links that are longer than this machine's: a message leaves `delay` after it was sent, and nothing waits for it but
// its receiver. A thread per transport posts what is due, since the engine's own is to be delayed by nothing.
#pragma once

#include <chrono>
#include <memory>

#include "plugin/runtime/transport.h"

namespace dualpipe::bench {

// Collectives and channels other than the pipeline's own are not delayed.
std::shared_ptr<Transport> make_delayed(std::shared_ptr<Transport> transport, std::chrono::microseconds delay);

}  // namespace dualpipe::bench
