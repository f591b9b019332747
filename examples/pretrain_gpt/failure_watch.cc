#include "examples/pretrain_gpt/failure_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

using namespace std::chrono_literals;

constexpr const char* kRecord = "failure";
constexpr const char* kReaders = "failure/readers";
constexpr const char* kFinished = "finished";
constexpr const char* kAllFinished = "finished/all";
constexpr const char* kLeft = "left";

constexpr const char* kStoreIsGone = "the store that all ranks share is gone: the process that hosts it has ended";

// The file that torchrun reads the cause from.
void write_error_file(const std::string& message) {
  if (const auto file = process_variable("TORCHELASTIC_ERROR_FILE")) {
    const std::string now = std::to_string(std::time(nullptr));
    const nlohmann::json extra = {{"py_callstack", message}, {"timestamp", now}};
    std::ofstream(*file) << nlohmann::json{{"message", {{"message", message}, {"extraInfo", extra}}}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

std::string record_text(int rank, const std::string& message) { return fmt::format("{}\n{}", rank, message); }

// The record's message, and this rank's own where that says something else.
std::string describe(const std::string& record, int here, const std::string& own_message) {
  const int rank = std::stoi(record);
  const std::string message = record.substr(record.find('\n') + 1);
  if (rank == here) {
    return message;
  }
  const bool says_more = !own_message.empty() && own_message != message;
  return fmt::format("rank {} failed: {}{}", rank, message, says_more ? fmt::format(" (here: {})", own_message) : "");
}

void wait_for_count(c10d::Store& store, const char* key, int count, std::chrono::milliseconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  while (store.add(key, 0) < count && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(20ms);
  }
}

}  // namespace

void exit_with_error(int rank, const std::string& message) {
  std::cout.flush();
  std::fputs(fmt::format("[rank {}] error: {}\n", rank, message).c_str(), stderr);
  std::fflush(nullptr);
  write_error_file(message);
  ::_exit(1);
}

FailureWatch::FailureWatch(const Rendezvous& rendezvous, int rank, int world_size)
    : rendezvous_(rendezvous), rank_(rank), world_size_(world_size) {
  if (world_size > 1) {
    store_ = rendezvous.connect();
    thread_ = std::thread([this] { poll(); });
  }
}

FailureWatch::~FailureWatch() { stop(); }

void FailureWatch::stop() {
  stopping_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
}

void FailureWatch::claim_exit() {
  if (exiting_.exchange(true)) {
    std::this_thread::sleep_for(1h);
  }
}

void FailureWatch::poll() {
  try {
    while (!store_->check({kRecord})) {
      if (stopping_) {
        return;
      }
      std::this_thread::sleep_for(200ms);
    }
  } catch (const std::exception&) {
    if (stopping_) {
      return;
    }
    claim_exit();
    exit_with_error(rank_, kStoreIsGone);
  }
  claim_exit();
  end_with_record(*store_, "");
}

void FailureWatch::fail(const std::string& message) {
  if (world_size_ == 1) {
    exit_with_error(rank_, message);
  }
  claim_exit();
  try {
    // A client of its own: the main thread's may be in the middle of a call that has failed.
    end_with_record(*rendezvous_.connect(5s), message);
  } catch (const std::exception&) {
    exit_with_error(rank_, message);
  }
}

void FailureWatch::end_with_record(c10d::Store& store, const std::string& own_message) {
  try {
    const std::string record = own_message.empty() ? store.get_to_str(kRecord)
                                                   : store.compareSet(kRecord, "", record_text(rank_, own_message));
    store.add(kReaders, 1);
    if (rendezvous_.is_host()) {
      wait_for_count(store, kReaders, world_size_, 5s);
    }
    exit_with_error(rank_, describe(record, rank_, own_message));
  } catch (const std::exception&) {
    exit_with_error(rank_, own_message.empty() ? kStoreIsGone : own_message);
  }
}

void FailureWatch::finish() {
  if (world_size_ == 1) {
    return;
  }
  c10d::Store& store = *rendezvous_.store();
  if (store.add(kFinished, 1) == world_size_) {
    store.set(kAllFinished, "");
  }
  store.wait({kAllFinished});
  stop();
  store.add(kLeft, 1);
  if (rendezvous_.is_host()) {
    wait_for_count(store, kLeft, world_size_, 10s);
  }
}

}  // namespace pretrain_gpt
