#include "examples/pretrain_gpt/model/initial_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

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

}  // namespace

at::ScalarType params_dtype(const Config& config) {
  return config.params_dtype == "float64"    ? at::kDouble
         : config.params_dtype == "bfloat16" ? at::kBFloat16
                                             : at::kFloat;
}

at::Tensor normal_weight(const Config& config, const std::string& logical_name, at::IntArrayRef shape, double std) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(stream_seed(static_cast<std::uint64_t>(config.seed), logical_name));
  at::Tensor values = at::empty(shape, at::kDouble).normal_(0, std, generator);
  return values.to(params_dtype(config)).requires_grad_();
}

at::Tensor ones_weight(const Config& config, at::IntArrayRef shape) {
  return at::ones(shape, params_dtype(config)).requires_grad_();
}

double residual_std(const Config& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

}  // namespace pretrain_gpt
