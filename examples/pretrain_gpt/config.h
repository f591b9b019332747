// examples/pretrain_gpt/config.h
//
// What a run is told to do: one flat set of keys with Megatron's names, from a YAML file and `--set key=value`
// overrides.
//
// load_config() is strict. Refused with file, line and key: an unknown key (with the nearest valid one), a key inside a
// section, a key given twice, a value of the wrong type or out of range. 0 is a value like any other: legal where a
// key's comment says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pretrain_gpt {

// The most micro-batches of a step: a few message tags for each still fit an int.
inline constexpr std::int64_t kMostMicrobatches = std::int64_t{1} << 24;

struct Config {
  // Model.
  std::int64_t num_layers = 8;                  // Transformer layers, at least 1.
  std::int64_t hidden_size = 64;                // Width of the residual stream; a multiple of num_attention_heads.
  std::optional<std::int64_t> ffn_hidden_size;  // Width in the SwiGLU; default 8/3 hidden_size, up to a multiple of 32.
  std::int64_t num_attention_heads = 4;         // hidden_size / num_attention_heads is even (rotary embeddings).
  std::int64_t seq_length = 64;                 // Tokens of a sample.
  std::int64_t vocab_size = 256;                // Token ids are below it; 256 for bytes.
  double rotary_base = 10000;                   // Base of the rotary frequencies.
  double norm_epsilon = 1e-5;                   // Of the RMS norms.
  double init_method_std = 0.02;                // Standard deviation of initial weights.
  bool untie_embeddings_and_output_weights = false;  // true: the head has weights of its own.
  std::string params_dtype = "float32";              // float32, float64 or bfloat16.

  // Batch. The number of micro-batches of a step is global_batch_size / micro_batch_size, at most kMostMicrobatches.
  std::int64_t micro_batch_size = 1;   // Samples of a micro-batch.
  std::int64_t global_batch_size = 8;  // Samples of a step, a multiple of micro_batch_size.

  // Pipeline.
  std::string pipeline_schedule = "builtin_1f1b";                    // A name from `pretrain_gpt schedules`.
  std::optional<std::int64_t> pipeline_model_parallel_size;          // Ranks of the pipeline; default: the world size.
  std::optional<std::int64_t> virtual_pipeline_model_parallel_size;  // Chunks per rank; of interleaved_1f1b alone.
  std::vector<std::int64_t> pipeline_layer_counts;  // Layers of each stage, in stage order; empty: divided by cost.
  // The next two are for the plugin's schedules; builtin_1f1b takes them and does what it does without.
  bool variable_seq_lengths = false;         // Boundary shapes may differ between micro-batches.
  bool defer_tail_weight_gradients = false;  // Leave each rank's closing weight gradients to the optimizer step.
  bool record_actions = false;               // Write the last step's actions to <output_dir>/actions.csv.

  // Training.
  std::int64_t train_iters = 200;              // Steps, at least 1.
  double lr = 3e-3;                            // Largest learning rate; 0 is legal.
  double min_lr = 0;                           // What it decays to, at most lr.
  std::int64_t lr_warmup_iters = 0;            // Steps of linear warm-up; 0: none.
  std::optional<std::int64_t> lr_decay_iters;  // Step at which min_lr is reached; default train_iters.
  double weight_decay = 0.01;                  // On matrices, not on norm weights; 0: none.
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double clip_grad = 1.0;    // Largest norm of all gradients together; 0: no clipping.
  std::int64_t seed = 1234;  // Of weights and sample order; 0 is a seed.

  // Data.
  std::string data_path;           // Prefix of an indexed data set: <data_path>.bin and <data_path>.idx.
  std::string split = "99,1";      // Weights of the training and the validation part of the data.
  bool eod_mask_loss = false;      // Leave predictions of the end-of-document token (0) out of the loss.
  std::int64_t eval_interval = 0;  // Steps between evaluations; 0: none.
  std::int64_t eval_iters = 1;     // Global batches of an evaluation.

  // Output and limits.
  std::string output_dir = "output";  // Gets metrics.jsonl; made if it is not there.
  std::int64_t log_interval = 10;     // Steps between log lines; metrics.jsonl has every step.
  std::int64_t timeout_s = 300;       // Longest wait for another rank, at least 1.

  std::int64_t num_microbatches() const { return global_batch_size / micro_batch_size; }
  std::int64_t ffn_size() const;  // ffn_hidden_size or its default.

  // pipeline_model_parallel_size; throws std::bad_optional_access before resolve().
  std::int64_t pipeline_size() const;
};

// `text` as given to --set: "key=value".
using Overrides = std::vector<std::string>;

// The file, then the overrides (examples/pretrain_gpt/overrides.h), then the rules between keys.
Config load_config(const std::filesystem::path& file, const Overrides& overrides = {});

// The same from text; `name` stands for the file in messages.
Config parse_config(const std::string& yaml, const std::string& name, const Overrides& overrides = {});

// Gives the keys whose default is the world size a value. Throws UserError where the given ones do not fit it.
void resolve(Config& config, int world_size);

// Every key with its value as text, in the order of Config.
std::vector<std::pair<std::string, std::string>> key_values(const Config& config);

}  // namespace pretrain_gpt
