// tests/support/run_processes.h
//
// Ranks as processes: the test's program runs itself again, once per rank, with the name of a registered body.
//
//   DUALPIPE_PROCESS_BODY(dies) { if (process.rank == 1) std::raise(SIGKILL); ... }
//
//   TEST(Watchdog, SeesADeadPeer) {
//     const auto outcomes = run_processes(4, "dies");
//     EXPECT_EQ(outcomes[1].signal, SIGKILL);
//   }
//
// A body that returns exits with 0 by way of return from main; one that throws prints "error: <message>" and exits
// with 1. A TCPStore on a free port, hosted by the calling test, is theirs to meet. Children end with the thread that
// started them; those that are not back within the bound are killed, which their outcome says.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dualpipe {

// What a child knows.
struct Process {
  int rank = 0;
  int size = 0;
  int store_port = 0;
  std::vector<std::string> args;
  std::string directory;  // Fresh, empty, common to all; removed after the run.

  // A new client of the test's store on every call.
  c10::intrusive_ptr<c10d::Store> connect(std::chrono::milliseconds timeout = std::chrono::seconds(60)) const;
};

struct Outcome {
  std::optional<int> exit_code;  // Nothing if a signal ended it.
  std::optional<int> signal;
  bool late = false;   // Killed at the bound.
  double seconds = 0;  // From the start of all to its end.
  std::string out;
  std::string err;

  std::string to_string() const;  // For test messages: all of the above.
};

struct ProcessOptions {
  std::chrono::milliseconds bound{60000};
  std::vector<std::pair<std::string, std::string>> environment = {};  // In addition.
};

// By rank.
std::vector<Outcome> run_processes(int processes, const std::string& body, const std::vector<std::string>& args = {},
                                   const ProcessOptions& options = {});

// For main(): runs the body if this process is such a child, and gives its exit code.
std::optional<int> run_as_child();

using ProcessBody = std::function<void(const Process&)>;

struct ProcessBodyRegistration {
  ProcessBodyRegistration(const std::string& name, ProcessBody body);
};

}  // namespace dualpipe

#define DUALPIPE_PROCESS_BODY(name)                                                                              \
  static void process_body_##name(const ::dualpipe::Process& process);                                           \
  static const ::dualpipe::ProcessBodyRegistration process_body_registration_##name(#name, process_body_##name); \
  static void process_body_##name([[maybe_unused]] const ::dualpipe::Process& process)
