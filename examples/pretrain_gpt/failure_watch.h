// examples/pretrain_gpt/failure_watch.h
//
// One failure path for all ranks: the first that fails leaves a record in the store, and every other one ends with that
// record's message within a second, wherever it is waiting.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "examples/pretrain_gpt/distributed.h"

namespace pretrain_gpt {

class FailureWatch {
 public:
  // Starts a thread with a store client of its own; none where there is one process. `rendezvous` outlives the watch.
  FailureWatch(const Rendezvous& rendezvous, int rank, int world_size);
  ~FailureWatch();

  // Records the failure unless another rank has (whose message is then shown too), prints it, and ends the process with
  // code 1, without running destructors: work that is under way is not unwound. A rank that hosts the store gives the
  // others up to five seconds to read the record.
  [[noreturn]] void fail(const std::string& message);

  // The regular end, collective: returns once every rank is here; the host returns last.
  void finish();

 private:
  void poll();
  void stop();
  void claim_exit();  // One thread ends the process; another that wants to waits for that.
  [[noreturn]] void end_with_record(c10d::Store& store, const std::string& own_message);

  const Rendezvous& rendezvous_;
  int rank_, world_size_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> exiting_{false};
  c10::intrusive_ptr<c10d::Store> store_;  // The thread's client.
  std::thread thread_;
};

// Prints "[rank r] error: message", hands it to torchrun where that asks for it, and ends the process with code 1.
[[noreturn]] void exit_with_error(int rank, const std::string& message);

}  // namespace pretrain_gpt
