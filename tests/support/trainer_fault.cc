// tests/support/trainer_fault.cc
//
// A fault in the middle of what a rank computes or saves, for trainers that know nothing of faults: a library for
// LD_PRELOAD that counts the calls of one function. Environment:
//   TRAINER_FAULT_IN    start (outer: a model's table of rotary positions, made once the ranks have met), forward
//                       (silu, one call per MLP and micro-batch), backward (its backward, likewise), optimizer
//                       (addcdiv_, one per parameter and step) or save (fsync, one per file and folder of a
//                       checkpoint that is changed)
//   TRAINER_FAULT_AT    the call, from 1, at which it happens
//   TRAINER_FAULT_KIND  throw | bad_alloc | exit | kill | hang | wait
//   TRAINER_FAULT_FILE  gets the moment of it: seconds of CLOCK_MONOTONIC, which time.monotonic() of Python reads
// exit leaves with code 7 and says nothing; hang computes for ever, while the process's other threads go on; wait
// sleeps until TRAINER_FAULT_FILE is gone.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/outer_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <stdexcept>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

long fault_at() {
  static const long at = std::strtol(variable("TRAINER_FAULT_AT").c_str(), nullptr, 10);
  return at;
}

void write_moment() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::FILE* file = std::fopen(variable("TRAINER_FAULT_FILE").c_str(), "w");
  if (file == nullptr) return;
  std::fprintf(file, "%lld.%09ld\n", static_cast<long long>(now.tv_sec), now.tv_nsec);
  std::fclose(file);
}

[[noreturn]] void compute_for_ever() {
  const volatile int number = 0;
  for (;;) static_cast<void>(number);  // Volatile: not left out.
}

void wait_for_removal() {
  while (access(variable("TRAINER_FAULT_FILE").c_str(), F_OK) == 0) usleep(1000);
}

void happen(const std::string& kind) {
  write_moment();
  if (kind == "throw") throw std::runtime_error("injected: no such expert");
  if (kind == "bad_alloc") throw std::bad_alloc();
  if (kind == "exit") _exit(7);
  if (kind == "kill") std::raise(SIGKILL);
  if (kind == "hang") compute_for_ever();
  if (kind == "wait") wait_for_removal();
}

// Calls of a part come from one thread at a time: the one that trains, or the one that saves.
void pass(const char* part) {
  static const std::string chosen = variable("TRAINER_FAULT_IN");
  static long calls = 0;
  if (chosen == part && ++calls == fault_at()) happen(variable("TRAINER_FAULT_KIND"));
}

template <typename Function>
Function original(const char* symbol) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace

at::Tensor at::_ops::outer::call(const at::Tensor& self, const at::Tensor& vec2) {
  static const auto next =
      original<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>("_ZN2at4_ops5outer4callERKNS_6TensorES4_");
  pass("start");
  return next(self, vec2);
}

at::Tensor at::_ops::silu::call(const at::Tensor& self) {
  static const auto next = original<at::Tensor (*)(const at::Tensor&)>("_ZN2at4_ops4silu4callERKNS_6TensorE");
  pass("forward");
  return next(self);
}

at::Tensor at::_ops::silu_backward::call(const at::Tensor& grad_output, const at::Tensor& self) {
  static const auto next = original<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(
      "_ZN2at4_ops13silu_backward4callERKNS_6TensorES4_");
  pass("backward");
  return next(grad_output, self);
}

at::Tensor& at::_ops::addcdiv_::call(at::Tensor& self, const at::Tensor& tensor1, const at::Tensor& tensor2,
                                     const at::Scalar& value) {
  static const auto next =
      original<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&)>(
          "_ZN2at4_ops8addcdiv_4callERNS_6TensorERKS2_S5_RKN3c106ScalarE");
  pass("optimizer");
  return next(self, tensor1, tensor2, value);
}

int fsync(int file) {
  static const auto next = original<int (*)(int)>("fsync");
  pass("save");
  return next(file);
}
