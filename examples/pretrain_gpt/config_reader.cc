#include "examples/pretrain_gpt/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "examples/pretrain_gpt/config_fields.h"
#include "examples/pretrain_gpt/data/split.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/strict_yaml.h"

namespace pretrain_gpt {
namespace {

std::string origin(const std::string& name, const YAML::Mark& mark) {
  return fmt::format("{}:{}", name, mark.line + 1);
}

std::vector<YAML::Node> load_documents(const std::string& yaml, const std::string& name) {
  try {
    check_plain_yaml(yaml, [&](int line) { return fmt::format("{}:{}", name, line); });
    return YAML::LoadAll(yaml);
  } catch (const YAML::ParserException& error) {
    throw UserError(origin(name, error.mark), fmt::format("must be YAML, one `key: value` a line; {}", error.msg));
  }
}

YAML::Node load(const std::string& yaml, const std::string& name) {
  const std::vector<YAML::Node> documents = load_documents(yaml, name);
  if (documents.size() > 1) {
    throw UserError(origin(name, documents[1].Mark()),
                    fmt::format("must be in the one document of the file, got {} documents; remove the `---` between",
                                documents.size()));
  }
  return documents.empty() ? YAML::Node() : documents.front();
}

// Keys stand at the top level; a section is refused by its first key, which is what the user has to move.
void refuse_section(const std::string& section, const YAML::Node& content, const std::string& name) {
  for (const auto& entry : content) {
    const YAML::Node& value = entry.second;
    const std::string inner = entry.first.Scalar();
    const std::string where = origin(name, entry.first.Mark());
    if (find_config_field(inner) == nullptr) {
      throw UserError(
          where, fmt::format("unknown key '{}' in section '{}'{}", inner, section, did_you_mean(inner, config_keys())));
    }
    throw UserError(where, fmt::format("{} must stand at the top level, got it in section '{}'; for example `{}: {}` "
                                       "without indentation",
                                       inner, section, inner, value.IsScalar() ? value.Scalar() : "..."));
  }
}

struct Rules {
  const Config& config;
  const ConfigReader& reader;

  void require(bool holds, const std::string& key, const std::string& rule, const std::string& example,
               const std::string& other = "") const {
    if (!holds) {
      const std::string beside = other.empty() ? "" : ", with " + reader.cite(other);
      throw UserError("config", fmt::format("{} must be {}, got {}{}; for example {}", key, rule, reader.cite(key),
                                            beside, example));
    }
  }

  void check_model() const {
    const std::int64_t heads = config.num_attention_heads;
    require(config.hidden_size % heads == 0, "hidden_size", "a multiple of num_attention_heads",
            fmt::format("{}", 16 * heads), "num_attention_heads");
    require(config.hidden_size / heads % 2 == 0, "hidden_size", "an even multiple of num_attention_heads",
            fmt::format("{}", 16 * heads), "num_attention_heads");
  }

  // `size` of `ranks` (a key) must divide a width.
  void divides(const std::string& ranks, std::int64_t size, const std::string& width, std::int64_t of) const {
    require(of % size == 0, ranks, fmt::format("a divisor of {} = {}", width, of),
            fmt::format("{}", std::gcd(size, of)));
  }

  void check_mixture() const {
    const std::int64_t experts = config.num_experts;
    if (experts == 0) {
      require(config.expert_model_parallel_size == 1, "expert_model_parallel_size", "1 without experts", "1",
              "num_experts");
      return;
    }
    require(config.moe_router_topk <= experts, "moe_router_topk", "at most num_experts",
            fmt::format("{}", std::min<std::int64_t>(2, experts)), "num_experts");
    divides("expert_model_parallel_size", config.expert_model_parallel_size, "num_experts", experts);
    divides("tensor_model_parallel_size", config.tensor_model_parallel_size, "moe_shared_expert_intermediate_size",
            config.moe_shared_expert_intermediate_size);
    check_expert_tensor_parallel();
  }

  void check_expert_tensor_parallel() const {
    const std::int64_t tensor = config.tensor_model_parallel_size, size = config.expert_tensor_size();
    require(size == 1 || size == tensor, "expert_tensor_parallel_size", "1 or tensor_model_parallel_size", "1",
            "tensor_model_parallel_size");
    require(size == tensor || config.sequence_parallel, "sequence_parallel",
            "true where tensor_model_parallel_size is above expert_tensor_parallel_size = 1, so that tensor ranks hold "
            "different tokens",
            "true", "tensor_model_parallel_size");
    divides(config.expert_tensor_parallel_size ? "expert_tensor_parallel_size" : "tensor_model_parallel_size", size,
            "moe_ffn_hidden_size", config.moe_ffn_size());
  }

  void check_tensor_parallel() const {
    const std::string key = "tensor_model_parallel_size";
    const std::int64_t size = config.tensor_model_parallel_size;
    divides(key, size, "num_attention_heads", config.num_attention_heads);
    divides(key, size, "ffn_hidden_size", config.ffn_size());
    divides(key, size, "vocab_size", config.vocab_size);
    require(!config.sequence_parallel || size > 1, "sequence_parallel", "false with one tensor rank", "false", key);
    if (config.sequence_parallel) {
      divides(key, size, "seq_length", config.seq_length);
    }
  }

  void check_gradients() const {
    require(config.params_dtype != "float64" || !config.accumulates_in_float32(), "accumulate_allreduce_grads_in_fp32",
            "false for float64", "false", "params_dtype");
  }

  void check_batch() const {
    require(config.global_batch_size % config.micro_batch_size == 0, "global_batch_size",
            "a multiple of micro_batch_size", fmt::format("{}", 8 * config.micro_batch_size), "micro_batch_size");
    require(config.num_microbatches() <= kMostMicrobatches, "global_batch_size",
            fmt::format("at most {} micro-batches", kMostMicrobatches), fmt::format("{}", 8 * config.micro_batch_size),
            "micro_batch_size");
  }

  void check_balance() const {
    const bool is_measured = config.balance == "measured";
    require(!is_measured || !config.cost_file.empty(), "balance", "even without a cost_file",
            "cost_file: output/profile/cost.json");
    require(!is_measured || config.pipeline_layer_counts.empty(), "balance", "even with pipeline_layer_counts", "even",
            "pipeline_layer_counts");
  }

  // The other ranks wait for the search.
  void check_search() const {
    require(config.pipeline_schedule != "auto" || config.schedule_search_s < static_cast<double>(config.timeout_s),
            "schedule_search_s", "below timeout_s with pipeline_schedule: auto",
            fmt::format("{}", static_cast<double>(config.timeout_s) / 10), "timeout_s");
  }

  void check_checkpoints() const {
    const bool saves = !config.save.empty(), loads = !config.load.empty();
    const std::string save = "save: output/checkpoints", load = "load: output/checkpoints";
    require(saves || config.save_interval == 0, "save_interval", "0 without a save folder", save);
    require(saves || !config.async_save, "async_save", "false without a save folder", save);
    require(loads || !config.ckpt_step, "ckpt_step", "left out without a load folder", load);
    require(loads || !config.finetune, "finetune", "false without a load folder", load);
    require(loads || !config.exit_on_missing_checkpoint, "exit_on_missing_checkpoint", "false without a load folder",
            load);
  }

  void check_learning_rate() const {
    require(config.min_lr <= config.lr, "min_lr", "at most lr", fmt::format("{}", config.lr / 10), "lr");
    const std::int64_t decay = config.lr_decay_iters.value_or(config.train_iters);
    const std::string other = config.lr_decay_iters ? "lr_decay_iters" : "train_iters";
    require(config.lr_warmup_iters < decay, "lr_warmup_iters", "below " + other, fmt::format("{}", decay / 10), other);
  }
};

}  // namespace

void ConfigReader::read_yaml(const std::string& yaml, const std::string& name) {
  const YAML::Node root = load(yaml, name);
  if (root.IsNull()) {
    return;
  }
  if (!root.IsMap()) {
    throw UserError(name + ":1", "must be `key: value` lines, got something else; for example num_layers: 8");
  }
  std::map<std::string, int> line_of;
  for (const auto& entry : root) {
    const YAML::Node& value = entry.second;
    const std::string key = entry.first.Scalar();
    const std::string where = origin(name, entry.first.Mark());
    const auto [first, is_new] = line_of.emplace(key, entry.first.Mark().line + 1);
    if (!is_new) {
      throw UserError(where,
                      fmt::format("{} must be given once, got it on line {} too; remove one", key, first->second));
    }
    if (value.IsMap() && find_config_field(key) == nullptr) {
      refuse_section(key, value, name);
    }
    read(key, value, where);
  }
}

void ConfigReader::read(const std::string& key, const YAML::Node& value, const std::string& origin) {
  const ConfigField* field = find_config_field(key);
  if (field == nullptr) {
    throw UserError(origin, fmt::format("unknown key '{}'{}", key, did_you_mean(key, config_keys())));
  }
  field->read(config_, value, origin);
  origins_[key] = origin;
}

Config ConfigReader::finish() const {
  const Rules rules{config_, *this};
  rules.check_model();
  rules.check_mixture();
  rules.check_tensor_parallel();
  rules.check_gradients();
  rules.check_batch();
  rules.check_balance();
  rules.check_search();
  rules.check_checkpoints();
  rules.check_learning_rate();
  parse_split(config_.split, origin_of("split"));
  return config_;
}

std::string ConfigReader::cite(const std::string& key) const {
  return fmt::format("{} = {} ({})", key, find_config_field(key)->print(config_), origin_of(key));
}

std::string ConfigReader::origin_of(const std::string& key) const {
  const auto found = origins_.find(key);
  return found == origins_.end() ? "default" : found->second;
}

}  // namespace pretrain_gpt
