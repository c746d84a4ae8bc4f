// SPDX-License-Identifier: Apache-2.0
//
// The agreement of ranks on who goes first, for all pairs of announced
// activities. All ranks come to the same result.

#include "core/engine/transfer/agreement.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard::agreement_test {
namespace {

constexpr Activity kReduce = Activity::kReduce;
constexpr Activity kGather = Activity::kGather;
constexpr Activity kStep = Activity::kStep;
constexpr Activity kJoin = Activity::kJoin;

Proposal ProposalFor(Activity activity, int32_t unit = -1) {
  Proposal proposal;
  proposal.activity = activity;
  proposal.unit = unit;
  proposal.active = activity == kJoin ? 0 : 1;
  return proposal;
}

std::string NameOf(int32_t unit) { return StrCat("unit ", unit); }

StatusOr<Decision> DecisionFor(const std::vector<Proposal>& proposals, int rank,
                               bool allow_missing) {
  return Decide(proposals, rank, allow_missing, NameOf);
}

// Expects the same leader on all ranks; `follows` is by rank.
void ExpectLed(const std::vector<Proposal>& proposals, bool allow_missing,
               int32_t leader, const std::vector<bool>& follows,
               int32_t active) {
  for (size_t r = 0; r < proposals.size(); ++r) {
    const auto decision =
        DecisionFor(proposals, static_cast<int>(r), allow_missing);
    ASSERT_OK(decision);
    EXPECT_EQ(decision->leader, leader);
    EXPECT_EQ(decision->follows, follows[r]) << "rank " << r;
    EXPECT_EQ(decision->active, active);
  }
}

void ExpectDesync(const std::vector<Proposal>& proposals, bool allow_missing,
                  int differs, std::initializer_list<std::string_view> parts) {
  for (size_t r = 0; r < proposals.size(); ++r) {
    const auto decision =
        DecisionFor(proposals, static_cast<int>(r), allow_missing);
    ExpectError(decision, StatusCode::kDesync, parts);
    EXPECT_EQ(decision.status().rank(), differs);
  }
}

TEST(DecideTest, AllTheSame) {
  for (const bool allow_missing : {false, true}) {
    for (const Proposal& proposal :
         {ProposalFor(kReduce, 2), ProposalFor(kGather, 2), ProposalFor(kStep),
          ProposalFor(Activity::kSummon), ProposalFor(Activity::kReplan)}) {
      ExpectLed({proposal, proposal, proposal}, allow_missing, 0,
                {false, false, false}, 3);
    }
    const Proposal join = ProposalFor(kJoin);
    ExpectLed({join, join}, allow_missing, 0, {false, false}, 0);
    ExpectLed({ProposalFor(kStep)}, allow_missing, 0, {false}, 1);
  }
}

TEST(DecideTest, RanksInJoinFollow) {
  const Proposal join = ProposalFor(kJoin);
  for (const bool allow_missing : {false, true}) {
    for (const Proposal& proposal :
         {ProposalFor(kReduce, 1), ProposalFor(kGather, 1),
          ProposalFor(kStep)}) {
      ExpectLed({join, proposal, join, proposal}, allow_missing, 1,
                {true, false, true, false}, 2);
    }
    ExpectDesync({join, ProposalFor(Activity::kSummon)}, allow_missing, 0,
                 {"rank 1 summons", "rank 0 waits in join"});
    ExpectDesync({ProposalFor(Activity::kReplan), join}, allow_missing, 1,
                 {"rank 0 changes groups", "rank 1 waits in join"});
  }
}

TEST(DecideTest, DifferentThings) {
  ExpectDesync({ProposalFor(kReduce, 1), ProposalFor(kReduce, 2)}, false, 1,
               {"rank 0 reduces the gradients of unit 1",
                "rank 1 reduces the gradients of unit 2"});
  ExpectDesync(
      {ProposalFor(kStep), ProposalFor(kStep), ProposalFor(kReduce, 2)}, false,
      0, {"rank 2 reduces the gradients of unit 2", "rank 0 steps"});
  ExpectDesync({ProposalFor(kGather, 4), ProposalFor(kReduce, 4)}, false, 1,
               {"rank 0 gathers the parameters of unit 4",
                "rank 1 reduces the gradients of unit 4"});
  for (const bool allow_missing : {false, true}) {
    ExpectDesync({ProposalFor(kGather, 1), ProposalFor(kGather, 2)},
                 allow_missing, 1,
                 {"rank 0 gathers the parameters of unit 1",
                  "rank 1 gathers the parameters of unit 2"});
    ExpectDesync({ProposalFor(kStep), ProposalFor(Activity::kSummon)},
                 allow_missing, 1,
                 {"rank 0 steps", "rank 1 summons full parameters"});
    // A rank in join beside them changes nothing.
    ExpectDesync(
        {ProposalFor(kJoin), ProposalFor(kGather, 1), ProposalFor(kGather, 2)},
        allow_missing, 2, {"rank 1 gathers", "rank 2 gathers"});
  }
}

TEST(DecideTest, MissingGradients) {
  // Reductions may come in any order; the lowest rank's goes first.
  ExpectLed({ProposalFor(kReduce, 5), ProposalFor(kReduce, 2),
             ProposalFor(kReduce, 5)},
            true, 0, {false, true, false}, 3);
  // A reduction goes before a gather and before a step.
  ExpectLed(
      {ProposalFor(kGather, 3), ProposalFor(kStep), ProposalFor(kReduce, 2)},
      true, 2, {true, true, false}, 3);
  ExpectLed({ProposalFor(kStep), ProposalFor(kGather, 3)}, true, 1,
            {true, false}, 2);
  ExpectLed({ProposalFor(kJoin), ProposalFor(kStep), ProposalFor(kReduce, 1)},
            true, 2, {true, true, false}, 2);
  ExpectDesync({ProposalFor(kReduce, 1), ProposalFor(Activity::kReplan)}, true,
               1, {"rank 0 reduces", "rank 1 changes groups"});
  // Ranks that gather while others step have to gather the same unit.
  ExpectDesync(
      {ProposalFor(kStep), ProposalFor(kGather, 3), ProposalFor(kGather, 2)},
      true, 2, {"rank 1 gathers", "rank 2 gathers"});
}

Proposal ZeroedProposal(int32_t unit, int64_t zeroed) {
  Proposal proposal = ProposalFor(kReduce, unit);
  proposal.zeroed = zeroed;
  return proposal;
}

TEST(DecideTest, GradientsFromBeforeZeroGrad) {
  // Gradients from before zero_grad go first, and are not reduced together with
  // those from after it.
  ExpectLed({ZeroedProposal(2, 1), ZeroedProposal(2, 0), ZeroedProposal(2, 0)},
            true, 1, {true, false, false}, 3);
  ExpectLed({ZeroedProposal(2, 1), ProposalFor(kStep), ZeroedProposal(3, 0)},
            true, 2, {true, true, false}, 3);
  ExpectLed({ZeroedProposal(2, 1), ZeroedProposal(2, 1)}, true, 0,
            {false, false}, 2);
  // Where no gradients may be missing, no rank may be a zero_grad ahead of
  // another.
  ExpectLed({ZeroedProposal(2, 1), ZeroedProposal(2, 1)}, false, 0,
            {false, false}, 2);
  ExpectDesync({ZeroedProposal(2, 0), ZeroedProposal(2, 1)}, false, 1,
               {"rank 0 reduces the gradients of unit 2",
                "rank 1 reduces the gradients of unit 2 (zero_grad calls since "
                "the last step: 1)"});
}

// All ranks agree, whatever they announce, and at least one of them does what
// it announced.
TEST(DecideTest, EveryThreeProposals) {
  const std::vector<Proposal> all = {ProposalFor(kReduce, 0),
                                     ProposalFor(kReduce, 1),
                                     ProposalFor(kGather, 0),
                                     ProposalFor(kGather, 1),
                                     ProposalFor(kStep),
                                     ProposalFor(kJoin),
                                     ProposalFor(Activity::kSummon),
                                     ZeroedProposal(0, 1)};
  for (const bool allow_missing : {false, true}) {
    for (const Proposal& a : all) {
      for (const Proposal& b : all) {
        for (const Proposal& c : all) {
          const std::vector<Proposal> proposals = {a, b, c};
          const auto first = DecisionFor(proposals, 0, allow_missing);
          bool someone = false;
          for (int rank = 0; rank < 3; ++rank) {
            const auto other = DecisionFor(proposals, rank, allow_missing);
            ASSERT_EQ(other.status().ToString(), first.status().ToString());
            if (!other.ok()) continue;
            EXPECT_EQ(other->leader, first->leader);
            someone = someone || !other->follows;
            EXPECT_FALSE(rank == other->leader && other->follows);
          }
          EXPECT_EQ(someone, first.ok());
        }
      }
    }
  }
}

TEST(AgreementTest, ErrorOfOneRankIsTheErrorOfAll) {
  RunThreadRanks(3, [](const auto& comm) {
    const Deadline deadline = Deadline::After(10);
    const auto notices = OpenProposals(comm.get(), deadline);
    ASSERT_OK(notices);
    Agreement agreement(comm.get(), notices->get(), false, NameOf);
    const Status local =
        comm->rank() == 1 ? InvalidArgument("wrong here") : Status();
    const auto failed =
        agreement.Agree(ProposalFor(kStep), local, Arguments(), deadline);
    ExpectInvalid(failed, {"rank 1", "wrong here"});
    EXPECT_EQ(failed.status().rank(), 1);
    EXPECT_EQ(agreement.proposals()[1].failed, 1);
    EXPECT_EQ(agreement.proposals()[2].failed, 0);
    // The ranks agree again after the error.
    const auto decision = agreement.Agree(
        comm->rank() == 2 ? ProposalFor(kJoin) : ProposalFor(kGather, 6),
        Status(), Arguments(), deadline);
    ASSERT_OK(decision);
    EXPECT_EQ(decision->leader, 0);
    EXPECT_EQ(decision->follows, comm->rank() == 2);
    EXPECT_EQ(agreement.proposals()[1].unit, 6);
  });
}

// The fingerprints of arguments travel with the proposals: equal arguments cost
// one collective, and different ones are named.
TEST(AgreementTest, ArgumentsAreComparedInTheSameExchange) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([rank] {
      std::vector<std::string> phases;
      CommOptions options;
      options.rank = rank;
      options.world_size = 3;
      options.phase_hook = [&](std::string_view what) {
        phases.emplace_back(what);
      };
      const auto comm =
          OpenCommunicator("threads:3?name=agreement-arguments", options);
      ASSERT_OK(comm);
      const Deadline deadline = Deadline::After(10);
      const auto notices = OpenProposals(comm->get(), deadline);
      ASSERT_OK(notices);
      Agreement agreement(comm->get(), notices->get(), false, NameOf);
      const auto agree = [&](int value, const Status& local) {
        Arguments arguments;
        if (local.ok()) {
          arguments = {"how to test", [value](FactSink* sink) {
                         sink->Add("", "kind", "same");
                         sink->Add("", "value", value);
                       }};
        }
        return agreement.Agree(ProposalFor(Activity::kSave), local, arguments,
                               deadline);
      };

      phases.clear();
      ASSERT_OK(agree(7, Status()));
      EXPECT_EQ(phases, std::vector<std::string>{"agree on operation"});

      const auto differ = agree(rank == 2 ? 9 : 8, Status());
      ExpectError(differ, StatusCode::kDesync,
                  {"the ranks differ in how to test: value: rank 0 has 8, rank "
                   "2 has 9; 1 of 3 ranks differs from rank 0: [2]"});
      EXPECT_EQ(differ.status().rank(), 2);

      // An error of one rank, whose arguments cannot be described, comes first.
      ExpectInvalid(
          agree(rank, rank == 1 ? InvalidArgument("wrong here") : Status()),
          {"rank 1", "wrong here"});
      // So do different operations.
      const auto other = agreement.Agree(
          ProposalFor(rank == 1 ? Activity::kLoad : Activity::kSave), Status(),
          {"what differs", [rank](FactSink* s) { s->Add("", "rank", rank); }},
          deadline);
      ExpectError(other, StatusCode::kDesync,
                  {"rank 0 saves a checkpoint, rank 1 loads a state"});

      phases.clear();
      ASSERT_OK(agree(7, Status()));
      EXPECT_EQ(phases, std::vector<std::string>{"agree on operation"});

      // A rank without arguments waits for no rank, and keeps none waiting.
      const auto without_on = [&](int lacking, int value) {
        Arguments arguments;
        if (rank != lacking) {
          arguments = {"how to test", [value](FactSink* sink) {
                         sink->Add("", "value", value);
                       }};
        }
        return agreement.Agree(ProposalFor(Activity::kSave), Status(),
                               arguments, deadline);
      };
      for (const int lacking : {0, 1, 2}) {
        phases.clear();
        EXPECT_OK(without_on(lacking, 7));
        EXPECT_EQ(phases, std::vector<std::string>{"agree on operation"});
        const int least = lacking == 0 ? 1 : 0;
        const int other = lacking == 2 ? 1 : 2;
        const auto status = without_on(lacking, rank).status();
        ExpectError(
            status, StatusCode::kDesync,
            {StrCat("the ranks differ in the operation's arguments: value: "
                    "rank ",
                    least, " has ", least, ", rank ", other, " has ", other)});
        EXPECT_EQ(status.rank(), other);
      }

      // The same facts of other arguments are not the same.
      const std::string what = rank == 1 ? "how to end" : "how to begin";
      const auto named = agreement.Agree(
          ProposalFor(Activity::kSummon), Status(),
          {what, [](FactSink* sink) { sink->Add("", "rank", 0); }}, deadline);
      ExpectError(named, StatusCode::kDesync,
                  {"the ranks differ in the operation: its arguments: rank 0 "
                   "has how to begin, rank 1 has how to end"});

      phases.clear();
      ASSERT_OK(agree(7, Status()));
      EXPECT_EQ(phases, std::vector<std::string>{"agree on operation"});
      (void)(*comm)->Shutdown(deadline).ok();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace shard::agreement_test
