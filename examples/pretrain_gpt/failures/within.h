// examples/pretrain_gpt/failures/within.h
//
// Calls that must not hold up whoever wants them: one that is stuck (a store whose host is stopped, a pipe that nobody
// reads) is left behind, as the process ends.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace pretrain_gpt {

// Runs `call` on a thread of its own. What it uses has to live as long as the process, or in it. Throws
// std::system_error where no thread is to be had.
template <typename Call>
auto aside(Call call) {
  using Result = std::invoke_result_t<Call&>;
  const auto done = std::make_shared<std::promise<Result>>();
  std::future<Result> result = done->get_future();
  std::thread([done, call = std::move(call)]() mutable {
    try {
      if constexpr (std::is_void_v<Result>) {
        call();
        done->set_value();
      } else {
        done->set_value(call());
      }
    } catch (...) {
      done->set_exception(std::current_exception());
    }
  }).detach();
  return result;
}

// Nothing where it takes longer, or throws.
template <typename Call>
auto within(std::chrono::milliseconds bound, Call call) -> std::optional<std::invoke_result_t<Call&>> {
  try {
    auto result = aside(std::move(call));
    if (result.wait_for(bound) != std::future_status::ready) {
      return std::nullopt;
    }
    return result.get();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace pretrain_gpt
