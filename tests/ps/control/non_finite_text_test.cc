#include "ps/control/non_finite_text.h"

#include <gmock/gmock.h>

#include <limits>

namespace gradrail::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const Schema kSchema = {{"w", {4, 3}}, {"b", {3}}};

NonFinite at(NonFinite::Source source, float value = std::numeric_limits<float>::quiet_NaN()) {
  return {.source = source, .worker = 1, .element = 14, .value = value, .step = 7, .version = 19};
}
std::string line(const NonFinite& first) { return log_text(first, "worker 1 (host)", kSchema); }

TEST(NonFiniteText, NamesWorkerTensorElementAndStep) {
  NonFinite first = at(NonFinite::Source::gradient);
  EXPECT_THAT(line(first),
              StartsWith("worker 1 (host) has pushed NaN in tensor b, element 2 in step 7: the parameters of "
                         "all workers have it since global step 19; later cases are only counted"));
  EXPECT_EQ(short_text(first, kSchema), "NaN in tensor b, element 2, step 7, of worker 1");
  first.further = 2;
  EXPECT_THAT(line(first), HasSubstr("step 7, and so have 2 others: the parameters"));
  first.element = 3;
  EXPECT_THAT(line(first), HasSubstr("tensor w, element 3"));
}

TEST(NonFiniteText, NamesTheCauseThatIsKnown) {
  EXPECT_THAT(line(at(NonFinite::Source::initial, -kInfinity)),
              StartsWith("worker 1 (host) has offered -infinity in tensor b, element 2 as initial value"));
  EXPECT_THAT(line(at(NonFinite::Source::update, kInfinity)), HasSubstr("has made infinity in tensor b, element 2 of "
                                                                        "finite gradients"));
  EXPECT_THAT(line(at(NonFinite::Source::state, kInfinity)),
              HasSubstr("infinity in tensor b, element 2 of finite gradients, in the state of the optimizer"));
  EXPECT_THAT(line(at(NonFinite::Source::unknown)), HasSubstr("in the checkpoint, at the former parameter server"));
  EXPECT_EQ(short_text(at(NonFinite::Source::update), kSchema), "NaN in tensor b, element 2, step 7");
}

}  // namespace
}  // namespace gradrail::ps
