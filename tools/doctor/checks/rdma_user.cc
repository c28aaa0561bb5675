// Obstacles between a working device and this user's programs.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "fmt/format.h"
#include "tools/doctor/checks/rdma_checks.h"
#include "tools/doctor/facts/library_files.h"
#include "tools/doctor/facts/process_facts.h"
#include "tools/doctor/proofs/verbs_probe.h"
#include "tools/doctor/text.h"

namespace gradrail::tools::doctor {
namespace {

constexpr const char* kProvidersPackage =
    "sudo apt install ibverbs-providers (Debian, Ubuntu) or sudo dnf install libibverbs (RHEL)";

/// rdma-core's file that names a provider, and the library that it stands for.
Finding look_at_provider(Tree& tree, const RdmaDevice& device) {
  const std::string provider = provider_of(device);
  if (provider.empty()) {
    return {State::unknown,
            fmt::format("{}: no provider known for its driver '{}' ({}/device/driver)", device.name, device.driver,
                        device.folder),
            "libibverbs opens a device only with its provider", "ibv_devices shows those that have one"};
  }
  // rdma-core reads the name from this folder and loads the library: both must be present.
  const std::string file = fmt::format("/etc/libibverbs.d/{}.driver", provider);
  const std::string library = find_plugin(tree, "libibverbs", fmt::format("lib{}-rdmav", provider));
  if (tree.exists(file) && !library.empty())
    return {State::ok, fmt::format("{}: {} and {}", device.name, file, library)};
  const std::string lost = fmt::format("libibverbs does not see {}, and so neither do UCX and libfabric", device.name);
  if (!tree.exists(file))
    return {State::missing, fmt::format("{} ({}): no {}", device.name, device.driver, file), lost, kProvidersPackage};
  return {State::missing,
          fmt::format("{}: {} is there, its library lib{}-rdmav*.so in no library folder", device.name, file, provider),
          lost, kProvidersPackage};
}

absl::StatusOr<std::string> try_access(const std::string& path) {
  // The kernel decides, not the mode bits: a list of access rights or a cgroup of devices can also refuse.
  if (access(path.c_str(), R_OK | W_OK) == 0) return std::string("granted");
  return std::string(std::strerror(errno));
}

Finding look_at_access(System& system, const RdmaDevice& device) {
  const std::string path = "/dev/infiniband/" + device.uverbs;
  if (!system.tree().exists(path)) {
    return {State::missing, fmt::format("{}: no {}", device.name, path),
            "no program can open the device; in a container: it was not passed in",
            fmt::format("docker run --device={} (Kubernetes: an RDMA device plug-in); on the host: sudo modprobe "
                        "ib_uverbs && sudo udevadm trigger",
                        path)};
  }
  // A recording has no device nodes to open, so the answer is observed and recorded.
  const absl::StatusOr<std::string> answer =
      system.observe("access-" + device.uverbs, [path] { return try_access(path); });
  if (!answer.ok()) {
    return {State::unknown, fmt::format("{}: {}: {}", device.name, path, message_of(answer.status())),
            "this user may be kept from the device", fmt::format("ls -l {}", path)};
  }
  const std::string said = printable(trimmed(*answer));
  if (said == "granted") return {State::ok, fmt::format("{}: {} may be read and written", device.name, path)};
  return {State::broken, fmt::format("{}: {}: {} ({})", device.name, path, said, describe_user(system.tree())),
          "this user cannot use the device",
          "udev rules of rdma-core give it to all: sudo chmod 0666 " + path +
              ", for good in /etc/udev/rules.d/90-rdma.rules: KERNEL==\"uverbs*\", MODE=\"0666\""};
}

}  // namespace

Check check_rdma_providers(System& system, const std::vector<RdmaDevice>& devices) {
  if (devices.empty()) return not_applicable(topic::kRdma, "rdma-providers", "no RDMA device");
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices) findings.push_back(look_at_provider(system.tree(), device));
  const absl::StatusOr<VerbsAnswer> verbs = probe_verbs(system);
  if (verbs.ok()) {
    for (const auto& [name, why_not] : verbs->opened) {
      if (why_not.empty()) continue;
      findings.push_back({State::broken, fmt::format("libibverbs cannot open {}: {}", name, why_not),
                          "whatever uses verbs fails as this did", "ibv_devinfo -d " + name + " and dmesg say more"});
    }
  }
  return conclude(topic::kRdma, "rdma-providers", std::move(findings));
}

Check check_uverbs_access(System& system, const std::vector<RdmaDevice>& devices) {
  if (devices.empty()) return not_applicable(topic::kRdma, "uverbs-access", "no RDMA device");
  std::vector<Finding> findings;
  for (const RdmaDevice& device : devices)
    if (!device.uverbs.empty()) findings.push_back(look_at_access(system, device));
  if (findings.empty()) return not_applicable(topic::kRdma, "uverbs-access", "no user can open any device");
  return conclude(topic::kRdma, "uverbs-access", std::move(findings));
}

Check check_memlock(System& system) {
  const char* const name = "memlock";
  const char* const remedy =
      "ulimit -l unlimited; for good: '* - memlock unlimited' in /etc/security/limits.d/rdma.conf, "
      "LimitMEMLOCK=infinity in a systemd unit, docker run --ulimit memlock=-1";
  const absl::StatusOr<MemlockLimit> limit = memlock_limit(system.tree());
  if (!limit.ok()) {
    return conclude(topic::kRdma, name,
                    {{State::unknown, std::string(message_of(limit.status())),
                      "RDMA pins what it registers, and a limit refuses it", "ulimit -l"}});
  }
  // The soft limit counts: no part of this program raises it.
  if (!limit->soft) return conclude(topic::kRdma, name, {{State::ok, "unlimited in /proc/self/limits"}});
  const std::string what = fmt::format("{} in /proc/self/limits (Max locked memory)", size_text(*limit->soft));
  if (may_lock_without_limit(system.tree()))
    return conclude(topic::kRdma, name, {{State::ok, what + ", lifted by CAP_IPC_LOCK (/proc/self/status)"}});
  // A queue pair and its completion queue alone want some hundred KiB.
  constexpr uint64_t kTooLittle = 1 << 20;
  // Above 1 GiB the parameters of common models fit: no warning.
  constexpr uint64_t kPlenty = uint64_t{1} << 30;
  if (*limit->soft >= kPlenty) return conclude(topic::kRdma, name, {{State::ok, what}});
  const std::string lost = *limit->soft < kTooLittle
                               ? "RDMA cannot even register what a connection needs: it is refused with ENOMEM"
                               : "larger models cannot be registered for RDMA: it is refused with ENOMEM";
  return conclude(topic::kRdma, name,
                  {{*limit->soft < kTooLittle ? State::broken : State::warning, what, lost, remedy}});
}

}  // namespace gradrail::tools::doctor
