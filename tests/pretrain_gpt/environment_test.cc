#include <gtest/gtest.h>

#include <map>
#include <string>

#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/host_list.h"

namespace pretrain_gpt {
namespace {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    read(variables);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Environment, IsOneProcessWithoutALauncher) {
  const Environment environment = read({});
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_FALSE(environment.launcher_hosts_store);
}

TEST(Environment, SaysWhetherGlooThreadsYield) {
  EXPECT_EQ(read({}).gloo_threads_yield, std::nullopt);
  EXPECT_EQ(read({{"DUALPIPE_GLOO_THREADS", "yield"}}).gloo_threads_yield, true);
  EXPECT_EQ(read({{"DUALPIPE_GLOO_THREADS", "preempt"}}).gloo_threads_yield, false);
  EXPECT_EQ(refusal({{"DUALPIPE_GLOO_THREADS", ""}}), "[DUALPIPE_GLOO_THREADS] must be yield or preempt, got ''");
}

TEST(Environment, ReadsTorchrun) {
  const Environment environment = read({{"RANK", "3"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"MASTER_ADDR", "node0"},
                                        {"MASTER_PORT", "1234"},
                                        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                        {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_address, "node0");
  EXPECT_EQ(environment.master_port, 1234);
  EXPECT_TRUE(environment.launcher_hosts_store);
  EXPECT_EQ(environment.attempt, 2);
}

TEST(Environment, ReadsOpenMpi) {
  const Environment environment = read({{"OMPI_COMM_WORLD_RANK", "1"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
  EXPECT_EQ(environment.local_rank, 1);
}

TEST(Environment, ReadsHydra) {
  const Environment environment = read({{"PMI_RANK", "3"},
                                        {"PMI_SIZE", "4"},
                                        {"MPI_LOCALRANKID", "1"},
                                        {"MPI_LOCALNRANKS", "2"},
                                        {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 2);
  EXPECT_EQ(environment.master_address, "node0");
}

// mpiexec inside a batch job, whose own variables are those of the one process that ran it.
TEST(Environment, PrefersHydraInsideASlurmJob) {
  const Environment environment = read({{"PMI_RANK", "1"},
                                        {"PMI_SIZE", "2"},
                                        {"MPI_LOCALRANKID", "1"},
                                        {"MPI_LOCALNRANKS", "2"},
                                        {"SLURM_PROCID", "0"},
                                        {"SLURM_NTASKS", "8"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
}

TEST(Environment, PrefersSlurmWhereItSetsPmiItself) {
  const Environment environment = read({{"PMI_RANK", "5"},
                                        {"PMI_SIZE", "8"},
                                        {"SLURM_PROCID", "5"},
                                        {"SLURM_NTASKS", "8"},
                                        {"SLURM_NNODES", "2"},
                                        {"SLURM_JOB_NODELIST", "n[3-4]"}});
  EXPECT_EQ(environment.master_address, "n3");
  EXPECT_EQ(environment.local_world_size, 1);
}

TEST(Environment, ReadsSlurm) {
  const Environment environment = read({{"SLURM_PROCID", "5"},
                                        {"SLURM_NTASKS", "8"},
                                        {"SLURM_LOCALID", "1"},
                                        {"SLURM_NNODES", "2"},
                                        {"SLURM_JOB_ID", "41234"},
                                        {"SLURM_JOB_NODELIST", "jean-zay-ia[810-812]"}});
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.master_address, "jean-zay-ia810");
  EXPECT_EQ(environment.master_port, 21234);
}

TEST(Environment, PrefersTorchrunInsideASlurmJob) {
  const Environment environment =
      read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
}

TEST(Environment, TakesTorchrunPerNodeUnderSlurm) {
  const Environment environment = read({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"GROUP_WORLD_SIZE", "2"},
                                        {"TORCHELASTIC_RUN_ID", "41"},
                                        {"MASTER_ADDR", "n1"},
                                        {"SLURM_PROCID", "1"},
                                        {"SLURM_NTASKS", "2"},
                                        {"SLURM_LOCALID", "0"},
                                        {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.run_id, "41");
}

TEST(FieldReport68, SlurmsLocalIdStandsInForLocalRank) {
  const Variables variables{{"RANK", "5"},         {"WORLD_SIZE", "8"},   {"MASTER_ADDR", "n1"},
                            {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}};
  EXPECT_EQ(read(variables).local_rank, 1);
}

TEST(Environment, KnowsWhereToReportAMistakeOfItsOwn) {
  const auto place = [](Variables variables) {
    return read_meeting_place([variables](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_EQ(place({{"RANK", "9"}, {"WORLD_SIZE", "2"}}), std::nullopt);
  EXPECT_EQ(place({{"MASTER_PORT", "x"}}), std::nullopt);
  const auto known = place({{"RANK", "9"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->master_address, "n1");
  EXPECT_EQ(known->master_port, 1234);
}

struct Refused {
  const char* name;
  Variables variables;
  const char* message;
};

class FieldReport67 : public testing::TestWithParam<Refused> {};

TEST_P(FieldReport67, NamesTheVariable) { EXPECT_EQ(refusal(GetParam().variables), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    Environment, FieldReport67,
    testing::Values(
        Refused{"RankTooLarge",
                {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
                "[RANK] must be below WORLD_SIZE = 2, got 2; for example RANK=0"},
        Refused{"RankNoNumber",
                {{"RANK", "abc"}, {"WORLD_SIZE", "2"}},
                "[RANK] must be an integer of at least 0, got 'abc'; for example RANK=0"},
        Refused{"RankEmpty",
                {{"RANK", ""}, {"WORLD_SIZE", "2"}},
                "[RANK] must be an integer of at least 0, got ''; for example RANK=0"},
        Refused{"RankNegative",
                {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
                "[RANK] must be an integer of at least 0, got '-1'; for example RANK=0"},
        Refused{"NoWorldSize",
                {{"RANK", "0"}},
                "[WORLD_SIZE] must be set where RANK is, got nothing; for example WORLD_SIZE=1"},
        Refused{
            "NoRank", {{"WORLD_SIZE", "2"}}, "[RANK] must be set where WORLD_SIZE is, got nothing; for example RANK=0"},
        Refused{"WorldSizeZero",
                {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
                "[WORLD_SIZE] must be an integer of at least 1, got '0'; for example WORLD_SIZE=1"},
        Refused{"LocalWorldTooLarge",
                {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}},
                "[LOCAL_WORLD_SIZE] must be an integer from 1 to 2, got '3'; for example LOCAL_WORLD_SIZE=1"},
        Refused{"OpenMpiMaster",
                {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "4"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                "[MASTER_ADDR] must name the machine of rank 0 where only 2 of 4 processes are on this one, got "
                "nothing; for example MASTER_ADDR=node0"},
        Refused{"HydraMaster",
                {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}},
                "[MASTER_ADDR] must name the machine of rank 0 where only 1 of 4 processes are on this one, got "
                "nothing; for example MASTER_ADDR=node0"},
        Refused{"SlurmMaster",
                {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}},
                "[MASTER_ADDR] must name the machine of rank 0 where only 1 of 4 processes are on this one, got "
                "nothing; for example MASTER_ADDR=node0"},
        Refused{"HydraSize",
                {{"PMI_RANK", "1"}},
                "[PMI_SIZE] must be set where PMI_RANK is, got nothing; for example PMI_SIZE=1"},
        Refused{"HydraRank",
                {{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}},
                "[PMI_RANK] must be below PMI_SIZE = 4, got 4; for example PMI_RANK=0"},
        Refused{"Port",
                {{"MASTER_PORT", "70000"}},
                "[MASTER_PORT] must be an integer from 1 to 65535, got '70000'; for example MASTER_PORT=1"},
        Refused{
            "WorldBesideSlurm",
            {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}},
            "[WORLD_SIZE] must not contradict SLURM_NTASKS = 4 of a Slurm step, got 1; unset RANK and WORLD_SIZE to "
            "start a rank per task, or start one task per node that runs torchrun"},
        Refused{
            "RankBesideSlurm",
            {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}},
            "[RANK] must not contradict SLURM_PROCID = 1 of a Slurm step, got 0; unset RANK and WORLD_SIZE to start "
            "a rank per task, or start one task per node that runs torchrun"},
        Refused{"AgentsBesideSlurm",
                {{"RANK", "0"},
                 {"WORLD_SIZE", "4"},
                 {"TORCHELASTIC_RUN_ID", "none"},
                 {"GROUP_WORLD_SIZE", "1"},
                 {"SLURM_PROCID", "1"},
                 {"SLURM_NTASKS", "2"},
                 {"SLURM_STEP_ID", "0"}},
                "[GROUP_WORLD_SIZE] must not contradict SLURM_NTASKS = 2 of a Slurm step, got 1; unset RANK and "
                "WORLD_SIZE to start a rank per task, or start one task per node that runs torchrun"},
        Refused{"SlurmRank",
                {{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "8"}},
                "[SLURM_PROCID] must be below SLURM_NTASKS = 8, got 9; for example SLURM_PROCID=0"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(FieldReport65, FindsTheFirstHost) {
  EXPECT_EQ(first_host("linux[1,2]"), "linux1");
  EXPECT_EQ(first_host("jean-zay-ia[810-812]"), "jean-zay-ia810");
  EXPECT_EQ(first_host("alpha,beta,gamma"), "alpha");
  EXPECT_EQ(first_host("n[008-010]"), "n008");
  EXPECT_EQ(first_host("n[008-010].cluster,m1"), "n008.cluster");
  EXPECT_EQ(first_host("rack[1-2]n[07-09,12]"), "rack1n07");
  EXPECT_EQ(first_host("a-1-2,b[3-4]"), "a-1-2");
  EXPECT_EQ(first_host("tux[0-3,5]"), "tux0");
}

TEST(FieldReport65, ReadsTheListUnderBothOfItsNames) {
  const auto master_of = [](const std::string& nodes, const std::string& job_nodes) {
    Variables variables{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "2"}};
    if (!nodes.empty()) {
      variables["SLURM_NODELIST"] = nodes;
    }
    if (!job_nodes.empty()) {
      variables["SLURM_JOB_NODELIST"] = job_nodes;
    }
    return read(variables).master_address;
  };
  EXPECT_EQ(master_of("linux[1,2]", ""), "linux1");
  EXPECT_EQ(master_of("", "n[008-010]"), "n008");
  EXPECT_EQ(master_of("alpha,beta,gamma", "jean-zay-ia[810-812]"),
            "jean-zay-ia810");  // A step may have a part of a job.
}

TEST(FieldReport65, RefusesAListWithoutAHost) {
  EXPECT_THROW(first_host(""), UserError);
  try {
    first_host("n[1,2");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "[SLURM_JOB_NODELIST] must close its bracket, got 'n[1,2'; for example n[1-2]");
  }
}

}  // namespace
}  // namespace pretrain_gpt
