#include "conformance/setup.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/str_split.h"
#include "base/log.h"
#include "conformance/channel.h"
#include "fmt/format.h"
#include "tests/transport/loopback/context.h"
#include "transport/plugin_loader.h"
#include "transport/rails/bundle_context.h"

namespace gradrail::conformance {

std::string Setup::name() const {
  return fmt::format("{}_{}", transport->name, peers == Peers::threads ? "threads" : "processes");
}

std::ostream& operator<<(std::ostream& out, const Setup& setup) { return out << setup.name(); }

namespace {

bool is_built(const transport::Transport& transport) {
  const std::vector<std::string> plugins = transport::plugin_names();
  return !transport.plugin || std::find(plugins.begin(), plugins.end(), transport.name) != plugins.end();
}

}  // namespace

bool in_process_only(const transport::Transport& transport) { return transport.name == "loopback"; }

std::vector<Setup> all_setups() {
  transport::loopback::add_to_transports();
  std::vector<Setup> setups;
  for (const transport::Transport& transport : transport::transports()) {
    if (!is_built(transport) && !is_required(transport.name)) continue;
    setups.push_back({&transport, Peers::threads});
    if (!in_process_only(transport)) setups.push_back({&transport, Peers::processes});
  }
  return setups;
}

std::vector<Setup> process_setups() {
  std::vector<Setup> setups = all_setups();
  std::erase_if(setups, [](const Setup& setup) { return setup.peers != Peers::processes; });
  return setups;
}

bool is_required(std::string_view transport_name) {
  const char* required = std::getenv("GRADRAIL_REQUIRE");
  if (required == nullptr) return false;
  for (const auto& name : absl::StrSplit(required, ',')) {
    if (std::string_view(name.data(), name.size()) == transport_name) return true;
  }
  return false;
}

namespace {

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

const std::string kRails[] = {"127.0.0.1", "127.0.0.2"};

/// GRADRAIL_TEST_LANES: each connection has two rails, and two lanes on each one.
bool has_lanes(const transport::Transport& transport) {
  return transport.has_lanes && std::getenv("GRADRAIL_TEST_LANES") != nullptr;
}

/// GRADRAIL_TEST_OFI_PROVIDER: one run of the suite for each libfabric provider. GRADRAIL_TEST_RDMA_ONLY: with what
/// runs have without a word of their users. GRADRAIL_TEST_ENCRYPT: with encrypted data.
transport::OpenOptions open_options() {
  transport::OpenOptions options = {.rdma_only = std::getenv("GRADRAIL_TEST_RDMA_ONLY") != nullptr,
                                    .ofi_provider = environment("GRADRAIL_TEST_OFI_PROVIDER", "")};
  if (std::getenv("GRADRAIL_TEST_ENCRYPT") != nullptr) options.encryption = {.shared_key = "of the suite"};
  return options;
}

}  // namespace

std::unique_ptr<transport::Context> open(const transport::Transport& transport) {
  const auto need = [&](auto opened) {
    if (!opened.ok()) throw Broken(fmt::format("open {}: {}", transport.name, opened.status().ToString()));
    return *std::move(opened);
  };
  std::unique_ptr<transport::Context> context = need(transport.open(open_options()));
  if (!has_lanes(transport)) return context;
  return std::make_unique<transport::rails::BundleContext>(std::move(context), 2);
}

std::string any_address(const transport::Transport& transport) {
  if (transport.same_host_only) return "";
  if (has_lanes(transport)) return fmt::format("lanes:{}:0,{}:0", kRails[0], kRails[1]);
  return environment("GRADRAIL_TEST_HOST", "127.0.0.1") + ":0";  // a device may hear on one address alone
}

namespace {

/// Why the transport cannot be opened here, or "". Asked in a child: an RDMA library that was once opened keeps its
/// devices, and the kernel then refuses them to the forked peers.
std::string probe_why_not(const transport::Transport& transport) {
  const auto probe = [&] {
    const auto context = transport.open(open_options());
    return context.ok() ? std::string() : context.status().ToString();
  };
  int ends[2];
  if (!transport.plugin || pipe(ends) != 0) return probe();
  const pid_t child = fork();
  if (child == 0) {
    alarm(std::chrono::duration_cast<std::chrono::seconds>(timeout()).count());
    const std::string answer = probe();
    const ssize_t written = write(ends[1], answer.data(), answer.size());
    _exit(written == static_cast<ssize_t>(answer.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  char answer[2048];
  const ssize_t got = read(ends[0], answer, sizeof(answer));  // the child ends, and its end of the pipe with it
  ::close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (got > 0) return std::string(answer, static_cast<size_t>(got));
  return status == 0 ? "" : fmt::format("the process that tried it ended with wait status {}", status);
}

/// Asked once, before the first test: later the child too would be forked from a process that has used the devices.
const std::string& why_not(const transport::Transport& transport) {
  static std::map<std::string, std::string> answers;
  const auto known = answers.find(transport.name);
  return known != answers.end() ? known->second
                                : answers.emplace(transport.name, probe_why_not(transport)).first->second;
}

}  // namespace

void Conformance::SetUp() {
  // These tests lose peers by the hundred: the log of each loss would hide the results.
  if (std::getenv("GRADRAIL_LOG") == nullptr) send_log_to([](int /*level*/, const std::string& /*text*/) {}, 3);
  if (const std::string reason = why_not(*GetParam().transport); !reason.empty()) GRADRAIL_CANNOT(GetParam(), reason);
}

std::string setup_name(const ::testing::TestParamInfo<Setup>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(Built, Conformance, ::testing::ValuesIn(all_setups()), setup_name);
INSTANTIATE_TEST_SUITE_P(Built, ProcessConformance, ::testing::ValuesIn(process_setups()), setup_name);

TEST(Required, transports_are_in_this_build) {
  const char* required = std::getenv("GRADRAIL_REQUIRE");
  if (required == nullptr) GTEST_SKIP() << "GRADRAIL_REQUIRE is not set";
  for (const auto& name : absl::StrSplit(required, ',', absl::SkipEmpty())) {
    // Other suites read this variable too: what only they know about is theirs to check.
    const std::string text(name.data(), name.size());
    if (text != "tcp" && text != "shm" && text != "loopback" && text != "ucx" && text != "ofi") continue;
    const auto found = transport::find_transport(text);
    EXPECT_TRUE(found.ok() && is_built(**found)) << text;
  }
}

}  // namespace gradrail::conformance
