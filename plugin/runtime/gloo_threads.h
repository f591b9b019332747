// plugin/runtime/gloo_threads.h
//
// The threads in which Gloo handles its sockets: one per device of a process group, named gloo_tcp_loop.
//
// A send holds the lock of its pair while the kernel delivers the message, which wakes the receiver's thread. Where
// there are more threads than processors, that thread takes the sender's, and the sender's own thread, once something
// arrives for that pair, finds the lock taken and asks epoll again and again until its time slice is over
// (https://github.com/pytorch/gloo/issues/246). With 8 ranks on 2 cores most CPU time goes there: tests/bench/README.md
// has figures. Under the policy SCHED_BATCH a thread that wakes up does not take the processor from one that runs. It
// keeps its share, and where a processor is idle nothing changes.
#pragma once

namespace dualpipe {

// Gives all such threads that this process has now, and that have the policy SCHED_OTHER, SCHED_BATCH. Does nothing
// where the kernel refuses, or where the environment has DUALPIPE_GLOO_THREADS=preempt. Throws ScheduleError for
// another value of it than that or yield: "[DUALPIPE_GLOO_THREADS] must be yield or preempt, got 'no'".
void make_gloo_threads_yield();

}  // namespace dualpipe
