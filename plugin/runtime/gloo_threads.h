// plugin/runtime/gloo_threads.h
//
// The threads in which Gloo handles its sockets: one per device of a process group, named gloo_tcp_loop.
//
// A send holds the lock of its pair while the kernel delivers the message, which wakes the receiver's thread. Where
// ranks outnumber processors, that thread takes the sender's, and the sender's own thread, once something arrives for
// that pair, finds the lock taken (Pair::handleEvents in gloo/transport/tcp/pair.cc only tries it) and asks epoll again
// and again until its time slice is over. With 8 ranks on 2 cores most CPU time goes there: tests/bench/README.md,
// "Threads of Gloo". Under the policy SCHED_BATCH a thread that wakes up does not take the processor from one that
// runs; where none is idle it waits for a sleep or for the end of a time slice (some milliseconds).
#pragma once

#include <optional>
#include <string>

namespace dualpipe {

// Where they should: DUALPIPE_GLOO_THREADS says so (yield or preempt), else where `ranks`, those of this machine, are
// more than its processors: those online, also where a cpuset, a binding or a quota leaves fewer; the variable is for
// such cases. Throws ScheduleError for another value of it: "[DUALPIPE_GLOO_THREADS] must be yield or preempt, got
// 'no'".
bool should_gloo_threads_yield(const std::optional<std::string>& variable, int ranks, int processors);

// Where they should, gives all such threads that this process has now the policy SCHED_BATCH, whoever's group they
// belong to, but for those that have another one than SCHED_OTHER. The ranks of this machine are as torchrun, Open MPI
// or Hydra says, else `group_size`, which is too many for a group of several machines. How many threads yield now: 0
// where they should not or the kernel refuses. The thread of a group that is not connected to anybody yet may have no
// name, and is missed.
int make_gloo_threads_yield(int group_size);

}  // namespace dualpipe
