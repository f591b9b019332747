#include "examples/pretrain_gpt/collective.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "examples/pretrain_gpt/failures/exit_code.h"

namespace pretrain_gpt {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Gloo throws where a message is posted, if the peer is known to be gone by then.
TEST(Posted, ABrokenLinkIsALostPeer) {
  try {
    posted(
        "a message to another rank", []() -> WorkPtr { throw std::runtime_error("Connection reset by peer"); }, 3);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& lost) {
    EXPECT_STREQ(lost.what(), "a message to another rank failed: Connection reset by peer");
    EXPECT_EQ(lost.peer(), 3);
  }
}

TEST(Posted, AMistakeStaysWhatItIs) {
  const auto mistake = []() -> WorkPtr { throw std::invalid_argument("a tag below 0"); };
  EXPECT_THROW(posted("a sum over ranks", mistake), std::invalid_argument);
}

}  // namespace
}  // namespace pretrain_gpt
