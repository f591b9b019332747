// examples/pretrain_gpt/failures/exit_code.h
//
// How `pretrain_gpt` leaves. These numbers are fixed; scripts and schedulers may go by them:
//
//    0  ok             the run is done
//   10  configuration  a mistake in the configuration, the command line, the environment or the data
//   11  start          the ranks could not meet: a busy port, a rank that is absent or there twice
//   12  peer lost      another rank has ended or failed, or the connection to it has
//   13  exception      this rank has failed by an exception of its own
//   14  timeout        some rank got no further within step_timeout
//   15  not finite     more steps in a row than max_skipped_steps had a loss or gradients that are not finite
//   16  checkpoint     a checkpoint could not be written or read
//   17  pre-empted     SIGTERM or SIGUSR1 (saved where the message says so)
//
// All ranks of a run leave with the code of what ended it, but for 13, which is of the rank that failed: the others
// leave with 12. A rank that is killed from outside has no code.
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

namespace pretrain_gpt {

enum class ExitCode : int {
  kOk = 0,
  kConfiguration = 10,
  kStart = 11,
  kPeerLost = 12,
  kException = 13,
  kTimeout = 14,
  kNotFinite = 15,
  kCheckpoint = 16,
  kPreempted = 17,
};

const char* name_of(ExitCode code);  // "peer lost"

// An error that knows how the program leaves by it.
class RunError : public std::runtime_error {
 public:
  RunError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A wait for another rank that ended without what it waited for. Most often the echo of that rank's failure, or of
// another's: who catches it asks what was recorded before blaming anybody.
class PeerLost : public RunError {
 public:
  // `peer`: the rank of the run at the other end, where there is one.
  explicit PeerLost(const std::string& message, std::optional<int> peer = {})
      : RunError(ExitCode::kPeerLost, message), peer_(peer) {}
  std::optional<int> peer() const { return peer_; }

 private:
  std::optional<int> peer_;
};

// An exception of this rank in an action that is known better than by whoever catches it.
class ActionError : public RunError {
 public:
  ActionError(std::string action, const std::string& message)
      : RunError(ExitCode::kException, message), action_(std::move(action)) {}
  const std::string& action() const { return action_; }  // "2B3"

 private:
  std::string action_;
};

// kConfiguration for a mistake of the user, kException for what says nothing else.
ExitCode exit_code_of(const std::exception& error);

}  // namespace pretrain_gpt
