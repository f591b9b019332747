#include "examples/pretrain_gpt/model/random_stream.h"

#include <ATen/Context.h>

#include <mutex>

namespace pretrain_gpt {
namespace {

// FNV-1a, then the finalizer of SplitMix64, so that near seeds and near names give unrelated streams.
std::uint64_t stream_seed(std::uint64_t seed, const std::string& name) {
  std::uint64_t hash = 14695981039346656037ULL ^ seed;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  }
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

// A generator of the device's kind.
at::Generator new_generator(at::Device device) {
  at::Generator shared = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(shared.mutex());
  return shared.clone();
}

}  // namespace

at::Generator random_stream(std::int64_t seed, const std::string& name, at::Device device) {
  at::Generator generator = new_generator(device);
  generator.set_current_seed(stream_seed(static_cast<std::uint64_t>(seed), name));
  return generator;
}

}  // namespace pretrain_gpt
