// examples/pretrain_gpt/environment.h
//
// Which process of the run this one is, from the variables that its launcher sets:
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   mpirun    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (Open MPI)
//   mpiexec   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (Hydra: MPICH, Intel MPI)
//   srun      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_JOB_NODELIST (Slurm)
// The first launcher in this order whose rank variable is set is taken; with none there is one process. (Slurm may set
// PMI_RANK too: where SLURM_PROCID is there, it takes MPI_LOCALNRANKS to make a Hydra.) The number of processes is what
// the variables say, never the number of devices. MASTER_ADDR and MASTER_PORT always win; under Slurm the master is the
// first node of the list and the port follows the job id. Else all processes must be on this machine.
//
// RANK and WORLD_SIZE inside a Slurm step must not contradict it: each of several tasks that srun starts would be taken
// for a run of its own, or for another rank. They may be those of processes that a task starts itself, by torchrun or
// by hand. SLURM_LOCALID stands in for LOCAL_RANK where that is not set.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace pretrain_gpt {

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  // Processes on this machine.
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  bool launcher_hosts_store = false;       // torchrun's agent does; else rank 0 has to.
  int attempt = 0;                         // torchrun's restart count: keys of an earlier attempt are not ours.
  std::optional<bool> gloo_threads_yield;  // DUALPIPE_GLOO_THREADS; unset: whether ranks outnumber processors.
  std::string run_id;                      // Of the launcher, or of the Slurm job; "" where there is none.
};

inline bool is_on_one_machine(const Environment& environment) {
  return environment.local_world_size == environment.world_size;
}

using GetVariable = std::function<std::optional<std::string>(const std::string& name)>;

// Throws UserError naming the variable where a value is no number, out of range, no known word, or missing beside
// another.
Environment read_environment(const GetVariable& get);

// Where the run's store should be, as far as that can be told when read_environment() throws; else nothing.
std::optional<Environment> read_meeting_place(const GetVariable& get);

// This process's rank as a launcher told it, as far as that can be told when read_environment() throws; else nothing.
std::optional<int> rank_as_told(const GetVariable& get);

// Variables of this process.
std::optional<std::string> process_variable(const std::string& name);

}  // namespace pretrain_gpt
