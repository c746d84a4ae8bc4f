// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/handshake.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "core/comm/network/helper/secret.h"
#include "tests/core/comm/network/helper/helper_testing.h"

namespace shard::network::handshake_test {
namespace {

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

struct Ends {
  Ends(const Identity& a, const Identity& b,
       Role connecting_role = Role::kMember)
      : connecting(&a, connecting_role), listening(&b, Role::kMaster) {}

  // Returns what both ends find in the other's Head.
  Refusal Greet() {
    const Refusal a = connecting.TakeHead(BytesOf(listening.head()));
    const Refusal b = listening.TakeHead(BytesOf(connecting.head()));
    EXPECT_EQ(a, b);
    return b;
  }

  Handshake connecting;
  Handshake listening;
};

TEST(HandshakeTest, ProofsOfOneSecretAreRight) {
  for (const char* secret : {"a secret", ""}) {
    const Identity identity = MakeIdentity(secret);
    Ends ends(identity, identity);
    ASSERT_EQ(ends.Greet(), Refusal::kNone);
    EXPECT_EQ(ends.listening.TakeProof(BytesOf(ends.connecting.MakeProof())),
              Refusal::kNone);
    EXPECT_EQ(ends.connecting.TakeProof(BytesOf(ends.listening.MakeProof())),
              Refusal::kNone);
    EXPECT_EQ(ends.connecting.Compare(), Refusal::kNone);
  }
}

// Neither an own proof that is sent back, nor one with a wrong bit or length.
TEST(HandshakeTest, OtherProofsAreWrong) {
  const Identity identity = MakeIdentity();
  Ends ends(identity, identity);
  ASSERT_EQ(ends.Greet(), Refusal::kNone);
  EXPECT_EQ(ends.listening.TakeProof(BytesOf(ends.listening.MakeProof())),
            Refusal::kSecret);
  const Handshake::Proof right = ends.connecting.MakeProof();
  for (size_t bit = 0; bit < 8 * right.size(); ++bit) {
    Handshake::Proof wrong = right;
    wrong[bit / 8] = static_cast<unsigned char>(wrong[bit / 8] ^ 1 << bit % 8);
    EXPECT_EQ(ends.listening.TakeProof(BytesOf(wrong)), Refusal::kSecret);
  }
  EXPECT_EQ(ends.listening.TakeProof(BytesOf(right).first(31)),
            Refusal::kStranger);
}

TEST(HandshakeTest, EveryByteOfAHeadIsProved) {
  const Identity identity = MakeIdentity();
  Handshake connecting(&identity, Role::kMember);
  for (const size_t byte :
       {offsetof(Handshake::Head, restart),
        offsetof(Handshake::Head, has_secret),
        offsetof(Handshake::Head, silence_millis),
        offsetof(Handshake::Head, library), offsetof(Handshake::Head, nonce),
        sizeof(Handshake::Head) - 1}) {
    Handshake listening(&identity, Role::kMaster);
    Handshake::Head changed = connecting.head();
    reinterpret_cast<unsigned char*>(&changed)[byte] ^= 1;
    ASSERT_EQ(listening.TakeHead(BytesOf(changed)), Refusal::kNone);
    Handshake sender = connecting;
    ASSERT_EQ(sender.TakeHead(BytesOf(listening.head())), Refusal::kNone);
    EXPECT_EQ(listening.TakeProof(BytesOf(sender.MakeProof())),
              Refusal::kSecret)
        << byte;
  }
}

TEST(HandshakeTest, AProofIsOfOneConnectionAlone) {
  const Identity identity = MakeIdentity();
  Ends first(identity, identity);
  ASSERT_EQ(first.Greet(), Refusal::kNone);
  // The same Head and Proof, to a listening end with another number.
  Handshake second(&identity, Role::kMaster);
  ASSERT_EQ(second.TakeHead(BytesOf(first.connecting.head())), Refusal::kNone);
  EXPECT_EQ(second.TakeProof(BytesOf(first.connecting.MakeProof())),
            Refusal::kSecret);
}

TEST(HandshakeTest, HeadsShowOtherJobsAndStrangers) {
  const Identity mine = MakeIdentity();
  Identity other = mine;
  other.job_id = "job-18";
  EXPECT_EQ(Ends(mine, other).Greet(), Refusal::kJob);
  EXPECT_EQ(Ends(mine, mine, Role::kHigherHost).Greet(), Refusal::kRole);

  Handshake listening(&mine, Role::kMaster);
  Handshake::Head head = Handshake(&mine, Role::kMember).head();
  ++head.protocol;
  EXPECT_EQ(listening.TakeHead(BytesOf(head)), Refusal::kProtocol);
  ExpectError(listening.ErrorOf(Refusal::kProtocol),
              StatusCode::kFailedPrecondition,
              {"speaks version 2", "this host version 1"});
  // A later version's Head may be longer.
  EXPECT_EQ(listening.TakeHead(BytesOf(head).first(12)), Refusal::kProtocol);
  --head.protocol;
  EXPECT_EQ(listening.TakeHead(BytesOf(head).first(127)), Refusal::kStranger);
  EXPECT_EQ(listening.TakeHead(BytesOf(head).first(11)), Refusal::kStranger);
  ++head.magic;
  EXPECT_EQ(listening.TakeHead(BytesOf(head)), Refusal::kStranger);
}

TEST(HandshakeTest, RestartAndVersionAreCompared) {
  const Identity mine = MakeIdentity();
  Identity other = mine;
  other.restart = 4;
  Ends restarts(mine, other);
  ASSERT_EQ(restarts.Greet(), Refusal::kNone);
  EXPECT_EQ(restarts.connecting.Compare(), Refusal::kRestart);
  ExpectError(restarts.connecting.ErrorOf(Refusal::kRestart),
              StatusCode::kFailedPrecondition,
              {"is of restart 4", "this host of restart 3"});
  other = mine;
  other.library_version = "1.2.4\n";
  Ends versions(mine, other);
  ASSERT_EQ(versions.Greet(), Refusal::kNone);
  EXPECT_EQ(versions.connecting.Compare(), Refusal::kLibrary);
  ExpectError(versions.connecting.ErrorOf(Refusal::kLibrary),
              StatusCode::kFailedPrecondition,
              {"has libshard 1.2.4?, this host 1.2.3"});
}

// --- secrets ---

class SecretFileTest : public ::testing::Test {
 protected:
  void WriteFile(const std::string& text, mode_t mode = 0600) {
    ::unlink(path_.c_str());
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  std::string path_ = ::testing::TempDir() + "/secret";
};

bool Same(const Secret& a, const Secret& b) {
  return std::memcmp(a.key(), b.key(), Secret::kKeyBytes) == 0;
}

TEST_F(SecretFileTest, AFileAndAVariableGiveTheSameKey) {
  WriteFile("correct horse\n");
  const auto file = ReadSecret(nullptr, path_);
  const auto text = ReadSecret("correct horse", "");
  const auto other = ReadSecret("correct horsf", "");
  ASSERT_OK(file);
  ASSERT_OK(text);
  ASSERT_OK(other);
  EXPECT_TRUE(file->given());
  EXPECT_TRUE(Same(*file, *text));
  EXPECT_FALSE(Same(*text, *other));
  EXPECT_FALSE(Same(*text, Secret()));
}

TEST_F(SecretFileTest, NoneIsGiven) {
  const auto none = ReadSecret(nullptr, "");
  ASSERT_OK(none);
  EXPECT_FALSE(none->given());
}

TEST_F(SecretFileTest, AFileThatOthersMayUseIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    WriteFile("correct horse", mode);
    ExpectError(ReadSecret(nullptr, path_), StatusCode::kPermissionDenied,
                {"other users may use the secret file ", "chmod 600 "});
  }
}

TEST_F(SecretFileTest, WrongTextsAreRefused) {
  for (const char* empty : {"", "\n", "\r\n"}) {
    WriteFile(empty);
    ExpectInvalid(ReadSecret(nullptr, path_), {path_, "empty", "head -c 32"});
    ExpectInvalid(ReadSecret(empty, ""), {"SHARD_TOKEN: the secret is empty"});
  }
  WriteFile(std::string(kMaxSecretBytes, 'x'));
  EXPECT_OK(ReadSecret(nullptr, path_));
  WriteFile(std::string(kMaxSecretBytes + 1, 'x'));
  ExpectInvalid(ReadSecret(nullptr, path_), {"more than 4096 bytes"});
  ExpectInvalid(ReadSecret("x", path_), {"both SHARD_TOKEN and"});
  ExpectInvalid(ReadSecret(nullptr, ::testing::TempDir()),
                {"is no regular file"});
  ExpectError(ReadSecret(nullptr, path_ + "-none"), StatusCode::kNotFound,
              {"opening the secret file"});
}

}  // namespace
}  // namespace shard::network::handshake_test
