#include "examples/pretrain_gpt/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

// What a key takes: the rule in words, a value that works, and the test itself.
template <typename T>
struct Rule {
  std::string words;
  std::string example;
  std::function<bool(const T&)> holds;
};

std::string describe(const YAML::Node& node) {
  if (node.IsScalar()) {
    return fmt::format("'{}'", node.Scalar());
  }
  return node.IsMap() ? "a section" : node.IsSequence() ? "a list" : "nothing";
}

// A quoted scalar is text, whatever it looks like.
bool is_plain_scalar(const YAML::Node& node) { return node.IsScalar() && node.Tag() != "!"; }

template <typename Number>
std::optional<Number> parse_number(const YAML::Node& node) {
  if (!is_plain_scalar(node)) {
    return std::nullopt;
  }
  const std::string& text = node.Scalar();
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> parse(const YAML::Node& node, const std::int64_t&) {
  return parse_number<std::int64_t>(node);
}

std::optional<double> parse(const YAML::Node& node, const double&) {
  const std::optional<double> value = parse_number<double>(node);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<bool> parse(const YAML::Node& node, const bool&) {
  if (!is_plain_scalar(node) || (node.Scalar() != "true" && node.Scalar() != "false")) {
    return std::nullopt;
  }
  return node.Scalar() == "true";
}

std::optional<std::string> parse(const YAML::Node& node, const std::string&) {
  return node.IsScalar() ? std::optional(node.Scalar()) : std::nullopt;
}

std::optional<std::vector<std::int64_t>> parse(const YAML::Node& node, const std::vector<std::int64_t>&) {
  if (!node.IsSequence()) {
    return std::nullopt;
  }
  std::vector<std::int64_t> values;
  for (const YAML::Node& item : node) {
    const auto value = parse_number<std::int64_t>(item);
    if (!value) {
      return std::nullopt;
    }
    values.push_back(*value);
  }
  return values;
}

std::string print(std::int64_t value) { return fmt::format("{}", value); }
std::string print(double value) { return fmt::format("{}", value); }
std::string print(bool value) { return value ? "true" : "false"; }
std::string print(const std::string& value) { return value; }
std::string print(const std::vector<std::int64_t>& value) { return fmt::format("[{}]", fmt::join(value, ", ")); }

template <typename T>
T read_value(const std::string& key, const Rule<T>& rule, const YAML::Node& node, const std::string& origin) {
  const std::optional<T> value = parse(node, T{});
  if (!value || !rule.holds(*value)) {
    throw UserError(
        origin, fmt::format("{} must be {}, got {}; for example {}", key, rule.words, describe(node), rule.example));
  }
  return *value;
}

template <typename T>
ConfigField field(std::string key, T Config::*member, Rule<T> rule) {
  return {key, std::is_same_v<T, std::string>,
          [=](Config& config, const YAML::Node& node, const std::string& origin) {
            config.*member = read_value(key, rule, node, origin);
          },
          [=](const Config& config) { return print(config.*member); }};
}

template <typename T>
ConfigField field(std::string key, std::optional<T> Config::*member, Rule<T> rule) {
  return {key, false,
          [=](Config& config, const YAML::Node& node, const std::string& origin) {
            config.*member = read_value(key, rule, node, origin);
          },
          [=](const Config& config) { return config.*member ? print(*(config.*member)) : std::string(); }};
}

// Limits that no run meets, and under which no product of a few keys overflows.
constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostSize = std::int64_t{1} << 20;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;
constexpr std::int64_t kMostSeconds = 1'000'000;  // As milliseconds they fit LibTorch's int.

Rule<std::int64_t> at_least(std::int64_t least, std::int64_t example, std::int64_t most = kMost) {
  return {fmt::format("an integer from {} to {}", least, most), print(example),
          [=](const std::int64_t& value) { return value >= least && value <= most; }};
}

Rule<double> number_of_at_least_0(double example) {
  return {"a number of at least 0", print(example), [](const double& value) { return value >= 0; }};
}

Rule<double> number_above_0(double example) {
  return {"a number above 0", print(example), [](const double& value) { return value > 0; }};
}

Rule<double> fraction_below_1(double example) {
  return {"a number of at least 0 and below 1", print(example),
          [](const double& value) { return value >= 0 && value < 1; }};
}

Rule<bool> true_or_false() {
  return {"true or false", "true", [](const bool&) { return true; }};
}

Rule<std::string> text(std::string example) {
  return {"text", std::move(example), [](const std::string& value) { return !value.empty(); }};
}

// The first is the example.
Rule<std::string> one_of(const std::vector<std::string>& words) {
  const auto last = words.end() - 1;
  return {fmt::format("{} or {}", fmt::join(words.begin(), last, ", "), *last), words.front(),
          [words](const std::string& value) { return std::find(words.begin(), words.end(), value) != words.end(); }};
}

Rule<std::vector<std::int64_t>> layer_counts() {
  return {fmt::format("a list of integers from 1 to {}", kMostLayers), "[2, 2, 2, 2]",
          [](const std::vector<std::int64_t>& values) {
            return std::all_of(values.begin(), values.end(),
                               [](std::int64_t value) { return value >= 1 && value <= kMostLayers; });
          }};
}

std::vector<ConfigField> model_fields() {
  return {
      field("num_layers", &Config::num_layers, at_least(1, 8, kMostLayers)),
      field("hidden_size", &Config::hidden_size, at_least(2, 64, kMostSize)),
      field("ffn_hidden_size", &Config::ffn_hidden_size, at_least(1, 192, kMostSize)),
      field("num_attention_heads", &Config::num_attention_heads, at_least(1, 4, kMostSize)),
      field("seq_length", &Config::seq_length, at_least(1, 64, kMostSize)),
      field("vocab_size", &Config::vocab_size, at_least(2, 256)),
      field("rotary_base", &Config::rotary_base, number_above_0(10000)),
      field("norm_epsilon", &Config::norm_epsilon, number_of_at_least_0(1e-5)),
      field("init_method_std", &Config::init_method_std, number_of_at_least_0(0.02)),
      field("untie_embeddings_and_output_weights", &Config::untie_embeddings_and_output_weights, true_or_false()),
      field("hidden_dropout", &Config::hidden_dropout, fraction_below_1(0.1)),
      field("attention_dropout", &Config::attention_dropout, fraction_below_1(0.1)),
      field("params_dtype", &Config::params_dtype, one_of({"float32", "float64", "bfloat16"})),
  };
}

std::vector<ConfigField> mixture_fields() {
  return {
      field("num_experts", &Config::num_experts, at_least(0, 8, kMostSize)),
      field("moe_router_topk", &Config::moe_router_topk, at_least(1, 2, kMostSize)),
      field("moe_layer_freq", &Config::moe_layer_freq, at_least(1, 1, kMostLayers)),
      field("moe_ffn_hidden_size", &Config::moe_ffn_hidden_size, at_least(1, 192, kMostSize)),
      field("moe_shared_expert_intermediate_size", &Config::moe_shared_expert_intermediate_size,
            at_least(0, 192, kMostSize)),
      field("moe_router_load_balancing_type", &Config::moe_router_load_balancing_type, one_of({"aux_loss", "none"})),
      field("moe_aux_loss_coeff", &Config::moe_aux_loss_coeff, number_of_at_least_0(0.01)),
      field("moe_router_enable_expert_bias", &Config::moe_router_enable_expert_bias, true_or_false()),
      field("moe_router_bias_update_rate", &Config::moe_router_bias_update_rate, number_of_at_least_0(0.001)),
  };
}

std::vector<ConfigField> parallel_fields() {
  return {
      field("tensor_model_parallel_size", &Config::tensor_model_parallel_size, at_least(1, 2, kMostSize)),
      field("expert_model_parallel_size", &Config::expert_model_parallel_size, at_least(1, 2, kMostSize)),
      field("expert_tensor_parallel_size", &Config::expert_tensor_parallel_size, at_least(1, 1, kMostSize)),
      field("sequence_parallel", &Config::sequence_parallel, true_or_false()),
      field("use_distributed_optimizer", &Config::use_distributed_optimizer, true_or_false()),
      field("accumulate_allreduce_grads_in_fp32", &Config::accumulate_allreduce_grads_in_fp32, true_or_false()),
  };
}

std::vector<ConfigField> batch_fields() {
  return {
      field("micro_batch_size", &Config::micro_batch_size, at_least(1, 1, kMostSize)),
      field("global_batch_size", &Config::global_batch_size, at_least(1, 16)),
      field("last_batch", &Config::last_batch, one_of({"continue", "pad", "drop"})),
      field("recompute_granularity", &Config::recompute_granularity, one_of({"none", "selective", "full"})),
      field("overlap_moe_expert_parallel_comm", &Config::overlap_moe_expert_parallel_comm, true_or_false()),
  };
}

std::vector<ConfigField> pipeline_fields() {
  return {
      field("pipeline_schedule", &Config::pipeline_schedule, text("builtin_1f1b")),
      field("pipeline_model_parallel_size", &Config::pipeline_model_parallel_size, at_least(1, 4)),
      field("virtual_pipeline_model_parallel_size", &Config::virtual_pipeline_model_parallel_size,
            at_least(1, 2, kMostLayers)),
      field("pipeline_layer_counts", &Config::pipeline_layer_counts, layer_counts()),
      field("balance", &Config::balance, one_of({"even", "measured"})),
      field("variable_seq_lengths", &Config::variable_seq_lengths, true_or_false()),
      field("defer_tail_weight_gradients", &Config::defer_tail_weight_gradients, true_or_false()),
      field("cost_file", &Config::cost_file, text("output/profile/cost.json")),
      field("schedule_search_s", &Config::schedule_search_s, number_above_0(10)),
      field("memory_limit_gb", &Config::memory_limit_gb, number_of_at_least_0(80)),
      field("record_actions", &Config::record_actions, true_or_false()),
      field("record_phases", &Config::record_phases, true_or_false()),
      field("record_timeline", &Config::record_timeline, at_least(0, 5)),
  };
}

std::vector<ConfigField> training_fields() {
  return {
      field("train_iters", &Config::train_iters, at_least(1, 200)),
      field("lr", &Config::lr, number_of_at_least_0(0.003)),
      field("min_lr", &Config::min_lr, number_of_at_least_0(0.0003)),
      field("lr_warmup_iters", &Config::lr_warmup_iters, at_least(0, 20)),
      field("lr_decay_iters", &Config::lr_decay_iters, at_least(1, 200)),
      field("weight_decay", &Config::weight_decay, number_of_at_least_0(0.01)),
      field("adam_beta1", &Config::adam_beta1, fraction_below_1(0.9)),
      field("adam_beta2", &Config::adam_beta2, fraction_below_1(0.95)),
      field("adam_eps", &Config::adam_eps, number_above_0(1e-8)),
      field("clip_grad", &Config::clip_grad, number_of_at_least_0(1.0)),
      field("seed", &Config::seed, at_least(0, 1234)),
      field("max_skipped_steps", &Config::max_skipped_steps, at_least(0, 10)),
      field("check_for_nan_in_loss_and_grad", &Config::check_for_nan_in_loss_and_grad, true_or_false()),
  };
}

std::vector<ConfigField> checkpoint_fields() {
  return {
      field("save", &Config::save, text("output/checkpoints")),
      field("save_interval", &Config::save_interval, at_least(0, 100)),
      field("async_save", &Config::async_save, true_or_false()),
      field("checkpoints_to_keep", &Config::checkpoints_to_keep, at_least(2, 2)),
      field("load", &Config::load, text("output/checkpoints")),
      field("ckpt_step", &Config::ckpt_step, at_least(1, 100)),
      field("finetune", &Config::finetune, true_or_false()),
      field("exit_on_missing_checkpoint", &Config::exit_on_missing_checkpoint, true_or_false()),
  };
}

std::vector<ConfigField> data_and_output_fields() {
  return {
      field("data_path", &Config::data_path, text("data/text")),
      field("split", &Config::split, text("99,1")),
      field("eod_mask_loss", &Config::eod_mask_loss, true_or_false()),
      field("eval_interval", &Config::eval_interval, at_least(0, 100)),
      field("eval_iters", &Config::eval_iters, at_least(1, 1)),
      field("output_dir", &Config::output_dir, text("output")),
      field("log_interval", &Config::log_interval, at_least(1, 10)),
      field("timeout_s", &Config::timeout_s, at_least(1, 300, kMostSeconds)),
      field("step_timeout", &Config::step_timeout, at_least(1, 300, kMostSeconds)),
  };
}

std::vector<ConfigField> all_fields() {
  std::vector<ConfigField> fields = model_fields();
  for (const auto& group : {mixture_fields(), parallel_fields(), batch_fields(), pipeline_fields(), training_fields(),
                            checkpoint_fields(), data_and_output_fields()}) {
    fields.insert(fields.end(), group.begin(), group.end());
  }
  return fields;
}

}  // namespace

const std::vector<ConfigField>& config_fields() {
  static const std::vector<ConfigField> fields = all_fields();
  return fields;
}

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const ConfigField& field : config_fields()) {
    keys.push_back(field.key);
  }
  return keys;
}

const ConfigField* find_config_field(const std::string& key) {
  for (const ConfigField& field : config_fields()) {
    if (field.key == key) {
      return &field;
    }
  }
  return nullptr;
}

}  // namespace pretrain_gpt
