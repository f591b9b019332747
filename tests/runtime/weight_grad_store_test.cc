#include "plugin/runtime/weight_grad_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class WeightGradStoreTest : public ::testing::Test {
 protected:
  void put(const std::string& name, std::size_t bytes = 0) {
    store_.put([this, name] { log_.push_back(name); }, bytes);
  }
  void seal_one(WeightGradStore::Key key, const std::string& name, std::size_t bytes = 0) {
    store_.begin();
    put(name, bytes);
    store_.seal(key);
  }

  WeightGradStore store_;
  std::vector<std::string> log_;
};

TEST_F(WeightGradStoreTest, RunsGroupsInAnyOrderAndTheirWorkInThatOfPutting) {
  store_.begin();
  put("a");
  put("b");
  store_.seal({0, 0});
  seal_one({0, 1}, "c");
  store_.add(
      {0, 0}, [this] { log_.push_back("added"); }, 0);
  store_.run({0, 1});
  store_.run({0, 0});
  EXPECT_THAT(log_, ElementsAre("c", "a", "b", "added"));
  EXPECT_TRUE(store_.empty());
}

TEST_F(WeightGradStoreTest, SplitsBetweenBeginAndSeal) {
  EXPECT_FALSE(store_.splitting());
  store_.begin();
  EXPECT_TRUE(store_.splitting());
  store_.seal({0, 0});
  EXPECT_FALSE(store_.splitting());
}

TEST_F(WeightGradStoreTest, CountsBytesAndPuts) {
  store_.begin();
  put("a", 100);
  put("b", 20);
  EXPECT_EQ(store_.pending_bytes(), 120u);
  store_.seal({0, 0});
  store_.add(
      {3, 1}, [] {}, 3);
  EXPECT_EQ(store_.pending_bytes(), 123u);
  EXPECT_EQ(store_.put_count(), 2u);
  store_.run({0, 0});
  EXPECT_EQ(store_.pending_bytes(), 3u);
  store_.run({3, 1});
  EXPECT_EQ(store_.pending_bytes(), 0u);
  EXPECT_EQ(store_.put_count(), 2u);
}

TEST_F(WeightGradStoreTest, AnEmptyGroupIsANoOp) {
  store_.begin();
  store_.seal({0, 0});
  EXPECT_FALSE(store_.empty());
  store_.run({0, 0});
  EXPECT_TRUE(store_.empty());
}

TEST_F(WeightGradStoreTest, RefusesAKeyThatWasNotSealed) {
  EXPECT_THAT(
      [this] {
        store_.run({1, 4});
      },
      ThrowsMessage<ScheduleError>("[weight_grad_store] W of stage 1, micro-batch 4 must come after its I and "
                                   "once only, but the store holds nothing"));
  seal_one({0, 2}, "a", 8);
  EXPECT_THAT(
      [this] {
        store_.run({1, 4});
      },
      ThrowsMessage<ScheduleError>("[weight_grad_store] W of stage 1, micro-batch 4 must come after its I and "
                                   "once only, but the store holds stage 0: micro-batch 2 (8 bytes)"));
  store_.run({0, 2});
  EXPECT_THROW(store_.run({0, 2}), ScheduleError);
}

TEST_F(WeightGradStoreTest, DescribesWhatItHolds) {
  seal_one({0, 2}, "a", 1000);
  seal_one({0, 3}, "b", 24);
  EXPECT_EQ(store_.describe(), "stage 0: micro-batches 2, 3 (1024 bytes)");
  seal_one({7, 0}, "c");
  EXPECT_EQ(store_.describe(), "stage 0: micro-batches 2, 3; stage 7: micro-batch 0 (1024 bytes)");
}

TEST_F(WeightGradStoreTest, FreesEachClosureOnceItHasRun) {
  auto first = std::make_shared<int>(), second = std::make_shared<int>();
  const std::weak_ptr<int> watch = first;
  store_.begin();
  store_.put([first] {}, 0);
  store_.put([second, watch] { EXPECT_TRUE(watch.expired()); }, 0);
  store_.seal({0, 0});
  first.reset();
  EXPECT_FALSE(watch.expired());
  store_.run({0, 0});
  EXPECT_EQ(second.use_count(), 1);
}

TEST_F(WeightGradStoreTest, IsCleanAfterAClosureThatThrows) {
  auto held = std::make_shared<int>();
  store_.begin();
  put("before", 1);
  store_.put([] { throw std::runtime_error("closure"); }, 2);
  store_.put([this, held] { log_.push_back("after"); }, 4);
  store_.seal({0, 0});
  seal_one({0, 1}, "other", 8);
  EXPECT_THAT([this] { store_.run({0, 0}); }, ThrowsMessage<std::runtime_error>("closure"));
  EXPECT_THAT(log_, ElementsAre("before"));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(store_.describe(), "stage 0: micro-batch 1 (8 bytes)");
  store_.run({0, 1});
  EXPECT_TRUE(store_.empty());
  EXPECT_EQ(store_.pending_bytes(), 0u);
}

TEST_F(WeightGradStoreTest, MayBeUsedByTheWorkThatItRuns) {
  store_.begin();
  store_.put([this] { seal_one({0, 1}, "inner", 5); }, 1);
  store_.seal({0, 0});
  store_.run({0, 0});
  EXPECT_EQ(store_.pending_bytes(), 5u);
  store_.run({0, 1});
  EXPECT_THAT(log_, ElementsAre("inner"));
}

TEST_F(WeightGradStoreTest, ClearForgetsEverything) {
  seal_one({0, 0}, "a", 8);
  store_.begin();
  put("b", 8);
  store_.clear();
  EXPECT_TRUE(store_.empty());
  EXPECT_FALSE(store_.splitting());
  EXPECT_EQ(store_.pending_bytes(), 0u);
  store_.begin();
  store_.seal({0, 0});
  store_.run({0, 0});
  EXPECT_THAT(log_, ElementsAre());
}

TEST_F(WeightGradStoreTest, ChecksTheOrderOfCalls) {
  EXPECT_THAT([this] { put("a"); },
              ThrowsMessage<std::logic_error>(HasSubstr("WeightGradStore::put() outside begin() and seal()")));
  EXPECT_THROW(store_.seal({0, 0}), std::logic_error);
  store_.begin();
  EXPECT_THROW(store_.begin(), std::logic_error);
  store_.seal({0, 0});
  store_.begin();
  EXPECT_THAT(
      [this] {
        store_.seal({0, 0});
      },
      ThrowsMessage<std::logic_error>(HasSubstr("stage 0, micro-batch 0, which is sealed already")));
}

TEST(WeightGradStoreScope, NestsAndBelongsToAThread) {
  WeightGradStore outer, inner;
  EXPECT_EQ(WeightGradStore::current(), nullptr);
  {
    const WeightGradStore::Scope scope(outer);
    EXPECT_EQ(WeightGradStore::current(), &outer);
    {
      const WeightGradStore::Scope nested(inner);
      EXPECT_EQ(WeightGradStore::current(), &inner);
      std::thread([] { EXPECT_EQ(WeightGradStore::current(), nullptr); }).join();
    }
    EXPECT_EQ(WeightGradStore::current(), &outer);
  }
  EXPECT_EQ(WeightGradStore::current(), nullptr);
}

}  // namespace
}  // namespace dualpipe
