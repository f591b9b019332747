// examples/pretrain_gpt/failures/process_identity.h
//
// Which process on which machine a rank is, so that nobody else is taken for it: process numbers are used again.
#pragma once

#include <string>

namespace pretrain_gpt {

struct ProcessIdentity {
  std::string machine;  // Of one boot of one machine, and one namespace of process numbers.
  int pid = 0;
  std::string started;  // When, in the kernel's own words.
  std::string host;     // Its name, for messages.

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

ProcessIdentity this_process();

std::string to_text(const ProcessIdentity& process);  // Without line breaks.
ProcessIdentity identity_from_text(const std::string& text);
std::string describe(const ProcessIdentity& process);  // "process 123 on node0"

// Ends a process of this machine that is another than this one and still the one that is meant. A process that is
// stopped (SIGSTOP) cannot leave by itself.
void end_if_here(const ProcessIdentity& process);

}  // namespace pretrain_gpt
