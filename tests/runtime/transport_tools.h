// tests/runtime/transport_tools.h
//
// What the tests of the transports share.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "plugin/runtime/transport.h"

namespace dualpipe {

constexpr int kPipeline = 0;
constexpr int kMirror = 1;
constexpr int kOther = 2;

inline at::Tensor number(double value) { return torch::full({4}, value, torch::kDouble); }

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no TransportError";
}

inline double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace dualpipe
