#include "examples/pretrain_gpt/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>

#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/host_list.h"

namespace pretrain_gpt {
namespace {

struct Launcher {
  std::string rank, world_size, local_rank, local_world_size;  // Names of variables; "" where it has none.
};

const Launcher kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
const Launcher kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                        "OMPI_COMM_WORLD_LOCAL_SIZE"};
const Launcher kHydra{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
const Launcher kSlurm{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""};

class Reader {
 public:
  explicit Reader(const GetVariable& get) : get_(get) {}

  std::optional<std::string> text(const std::string& name) const { return name.empty() ? std::nullopt : get_(name); }

  std::optional<int> integer(const std::string& name, int least, int most) const {
    const std::optional<std::string> value = text(name);
    if (!value) {
      return std::nullopt;
    }
    int number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    const bool is_number = error == std::errc{} && end == value->data() + value->size();
    if (!is_number || number < least || number > most) {
      const std::string range = most == kNoLimit ? fmt::format("an integer of at least {}", least)
                                                 : fmt::format("an integer from {} to {}", least, most);
      throw UserError(name, fmt::format("must be {}, got '{}'; for example {}={}", range, *value, name, least));
    }
    return number;
  }

  int required(const std::string& name, int least, int most, const std::string& beside) const {
    const std::optional<int> value = integer(name, least, most);
    if (!value) {
      throw UserError(name,
                      fmt::format("must be set where {} is, got nothing; for example {}={}", beside, name, least));
    }
    return *value;
  }

  static constexpr int kNoLimit = std::numeric_limits<int>::max();

 private:
  const GetVariable& get_;
};

void read_ranks(const Reader& reader, const Launcher& launcher, Environment& environment) {
  environment.world_size = reader.required(launcher.world_size, 1, Reader::kNoLimit, launcher.rank);
  const int world_size = environment.world_size;
  environment.rank = reader.required(launcher.rank, 0, Reader::kNoLimit, launcher.world_size);
  if (environment.rank >= world_size) {
    throw UserError(launcher.rank, fmt::format("must be below {} = {}, got {}; for example {}=0", launcher.world_size,
                                               world_size, environment.rank, launcher.rank));
  }
  environment.local_rank = reader.integer(launcher.local_rank, 0, Reader::kNoLimit).value_or(environment.rank);
  environment.local_world_size = reader.integer(launcher.local_world_size, 1, world_size).value_or(world_size);
}

// The port, and the address where there is a list of nodes.
std::optional<std::string> read_slurm_master(const Reader& reader, Environment& environment) {
  auto nodes = reader.text("SLURM_JOB_NODELIST");
  if (!nodes) {
    nodes = reader.text("SLURM_NODELIST");
  }
  if (reader.integer("SLURM_NNODES", 1, Reader::kNoLimit).value_or(1) > 1) {
    environment.local_world_size = 1;
  }
  if (const auto job = reader.integer("SLURM_JOB_ID", 0, Reader::kNoLimit)) {
    environment.master_port = 20000 + *job % 10000;
  }
  return nodes ? std::optional(first_host(*nodes)) : std::nullopt;
}

// `known` is what the launcher tells of it.
void read_master_address(const Reader& reader, const std::optional<std::string>& known, Environment& environment) {
  const std::optional<std::string> given = reader.text("MASTER_ADDR");
  if (!given && !known && environment.local_world_size < environment.world_size) {
    throw UserError("MASTER_ADDR",
                    fmt::format("must name the machine of rank 0 where only {} of {} processes are on this one, got "
                                "nothing; for example MASTER_ADDR=node0",
                                environment.local_world_size, environment.world_size));
  }
  environment.master_address = given ? *given : known.value_or(environment.master_address);
}

void read_store(const Reader& reader, Environment& environment) {
  const auto job = reader.text("SLURM_JOB_ID");
  environment.run_id = reader.text("TORCHELASTIC_RUN_ID").value_or(job.value_or(""));
  environment.master_port = reader.integer("MASTER_PORT", 1, 65535).value_or(environment.master_port);
  environment.launcher_hosts_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  environment.attempt = reader.integer("TORCHELASTIC_RESTART_COUNT", 0, Reader::kNoLimit).value_or(0);
}

bool is_launched_by(const Reader& reader, const Launcher& launcher) { return reader.text(launcher.rank).has_value(); }

bool is_launched_by_hydra(const Reader& reader) {
  return is_launched_by(reader, kHydra) && (reader.text(kHydra.local_world_size) || !is_launched_by(reader, kSlurm));
}

[[noreturn]] void refuse_beside_slurm(const std::string& name, int value, const std::string& slurm_name,
                                      int slurm_value) {
  throw UserError(name, fmt::format("must not contradict {} = {} of a Slurm step, got {}; unset RANK and WORLD_SIZE to "
                                    "start a rank per task, or start one task per node that runs torchrun",
                                    slurm_name, slurm_value, value));
}

// RANK and WORLD_SIZE beside the variables of srun, which sets SLURM_STEP_ID; a batch script has a task 0 alone.
void check_slurm(const Reader& reader, const Environment& environment) {
  const auto task = reader.integer(kSlurm.rank, 0, Reader::kNoLimit);
  const auto tasks = reader.integer(kSlurm.world_size, 1, Reader::kNoLimit);
  const bool in_step = reader.text("SLURM_STEP_ID").has_value();
  if (!task || tasks.value_or(1) == 1 || (!in_step && *task == 0)) {
    return;
  }
  if (reader.text("TORCHELASTIC_RUN_ID")) {  // The tasks are agents.
    const int agents = reader.integer("GROUP_WORLD_SIZE", 1, Reader::kNoLimit).value_or(*tasks);
    if (agents != *tasks) {
      refuse_beside_slurm("GROUP_WORLD_SIZE", agents, kSlurm.world_size, *tasks);
    }
    return;
  }
  if (environment.world_size != *tasks) {
    refuse_beside_slurm(kTorchrun.world_size, environment.world_size, kSlurm.world_size, *tasks);
  }
  if (environment.rank != *task) {
    refuse_beside_slurm(kTorchrun.rank, environment.rank, kSlurm.rank, *task);
  }
}

void read_local_rank_of_slurm(const Reader& reader, Environment& environment) {
  if (!reader.text(kTorchrun.local_rank)) {
    environment.local_rank = reader.integer(kSlurm.local_rank, 0, Reader::kNoLimit).value_or(environment.local_rank);
  }
}

std::optional<bool> read_gloo_threads(const Reader& reader) {
  const std::string name = "DUALPIPE_GLOO_THREADS";
  const std::optional<std::string> value = reader.text(name);
  if (!value) {
    return std::nullopt;
  }
  if (*value != "yield" && *value != "preempt") {
    throw UserError(name, fmt::format("must be yield or preempt, got '{}'", *value));
  }
  return *value == "yield";
}

}  // namespace

Environment read_environment(const GetVariable& get) {
  const Reader reader(get);
  Environment environment;
  std::optional<std::string> master;
  if (is_launched_by(reader, kTorchrun) || reader.text(kTorchrun.world_size)) {
    read_ranks(reader, kTorchrun, environment);
    check_slurm(reader, environment);
    read_local_rank_of_slurm(reader, environment);
  } else if (is_launched_by(reader, kOpenMpi)) {
    read_ranks(reader, kOpenMpi, environment);
  } else if (is_launched_by_hydra(reader)) {
    read_ranks(reader, kHydra, environment);
  } else if (is_launched_by(reader, kSlurm)) {
    read_ranks(reader, kSlurm, environment);
    master = read_slurm_master(reader, environment);
  }
  read_master_address(reader, master, environment);
  read_store(reader, environment);
  environment.gloo_threads_yield = read_gloo_threads(reader);
  return environment;
}

std::optional<Environment> read_meeting_place(const GetVariable& get) {
  const Reader reader(get);
  if (!reader.text("MASTER_ADDR") && !reader.text("MASTER_PORT")) {
    return std::nullopt;
  }
  try {
    Environment environment;
    environment.world_size = 2;  // Somebody else's.
    environment.rank = 1;
    environment.local_world_size = 2;
    environment.master_address = reader.text("MASTER_ADDR").value_or(environment.master_address);
    read_store(reader, environment);
    return environment;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::optional<int> rank_as_told(const GetVariable& get) {
  const Reader reader(get);
  for (const Launcher* launcher : {&kTorchrun, &kOpenMpi, &kHydra, &kSlurm}) {
    if (reader.text(launcher->rank)) {
      try {
        return reader.integer(launcher->rank, std::numeric_limits<int>::min(), Reader::kNoLimit);
      } catch (const UserError&) {
        return std::nullopt;
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace pretrain_gpt
