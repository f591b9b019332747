// tests/stress/processes/fault.cc
//
// A fault in the middle of a rank's forward, for trainers that know nothing of faults: a library for LD_PRELOAD that
// counts calls of silu, one per MLP and micro-batch. Environment:
//   STRESS_FAULT_AT    the call, from 1, at which it happens
//   STRESS_FAULT_KIND  throw | bad_alloc | exit | kill
//   STRESS_FAULT_FILE  gets the moment of it: seconds of CLOCK_MONOTONIC, which time.monotonic() of Python reads
// exit leaves with code 7 and says nothing.
#include <ATen/core/Tensor.h>
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

using Silu = at::Tensor (*)(const at::Tensor&);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

long fault_at() {
  static const long at = std::strtol(variable("STRESS_FAULT_AT").c_str(), nullptr, 10);
  return at;
}

void write_moment() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  std::FILE* file = std::fopen(variable("STRESS_FAULT_FILE").c_str(), "w");
  if (file == nullptr) return;
  std::fprintf(file, "%lld.%09ld\n", static_cast<long long>(now.tv_sec), now.tv_nsec);
  std::fclose(file);
}

void happen(const std::string& kind) {
  write_moment();
  if (kind == "throw") throw std::runtime_error("injected: no such expert");
  if (kind == "bad_alloc") throw std::bad_alloc();
  if (kind == "exit") _exit(7);
  if (kind == "kill") std::raise(SIGKILL);
}

at::Tensor silu_with_fault(const at::Tensor& input) {
  static const auto original = reinterpret_cast<Silu>(dlsym(RTLD_NEXT, "_ZN2at4_ops4silu4callERKNS_6TensorE"));
  static long calls = 0;
  if (++calls == fault_at()) happen(variable("STRESS_FAULT_KIND"));
  return original(input);
}

}  // namespace

at::Tensor at::_ops::silu::call(const at::Tensor& self) { return silu_with_fault(self); }
