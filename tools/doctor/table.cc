#include "tools/doctor/table.h"

#include <algorithm>
#include <utility>

namespace gradrail::tools::doctor {
namespace {

using Predicate = std::function<bool(const Facts&)>;

constexpr auto kHost = &Machine::host;
constexpr auto kDevices = &Machine::rdma_devices;
constexpr auto kPorts = &Machine::rdma_ports;
constexpr auto kGpus = &Machine::gpus;
constexpr auto kCards = &Machine::cards;

Predicate always() {
  return [](const Facts&) { return true; };
}
Predicate has(const char* name) {
  return [name](const Facts& facts) { return facts.has(name); };
}
Predicate lacks(const char* name) {
  return [name](const Facts& facts) { return !facts.has(name); };
}
Predicate is(const char* name, const char* value) {
  return [name, value](const Facts& facts) { return facts[name] == value; };
}
/// Whether two facts differ, also if one of the two is not a number.
Predicate differ(const char* name, const char* other) {
  return [name, other](const Facts& facts) { return facts.has(other) && facts[name] != facts[other]; };
}
/// False where the value is not a number.
Predicate below(const char* name, uint64_t limit) {
  return [name, limit](const Facts& facts) { return facts.number(name).value_or(UINT64_MAX) < limit; };
}
Predicate below(const char* name, const char* other) {
  return [name, other](const Facts& facts) {
    return facts.has(name) && facts.has(other) && *facts.number(name) < *facts.number(other);
  };
}
Predicate operator&&(Predicate a, Predicate b) {
  return [a = std::move(a), b = std::move(b)](const Facts& facts) { return a(facts) && b(facts); };
}
Predicate operator||(Predicate a, Predicate b) {
  return [a = std::move(a), b = std::move(b)](const Facts& facts) { return a(facts) || b(facts); };
}

Row no_device() { return {lacks("rdma"), State::not_applicable, "no RDMA device"}; }

bool one_port_works(const Machine& machine) {
  // Most cards have two ports, and one cable.
  return std::any_of(machine.rdma_ports.begin(), machine.rdma_ports.end(), has("active"));
}

CheckTable rdma_devices() {
  const std::string lost = "ucx and ofi carry nothing by RDMA here; between hosts it is tcp";
  return {
      topic::kRdma,
      "rdma-devices",
      {{kDevices, {{always(), State::ok, "{what} in {folder}"}}},
       {kHost,
        {{lacks("rdma") && has("idle_cards"), State::missing,
          "nothing in /sys/class/infiniband, but /sys/bus/pci/devices has {idle_cards}", lost,
          "sudo modprobe mlx5_ib (mlx4_ib for ConnectX-3); for good: echo mlx5_ib | sudo tee "
          "/etc/modules-load.d/mlx5_ib.conf"},
         {lacks("rdma"), State::missing, "nothing in /sys/class/infiniband, and no card in /sys/bus/pci/devices", lost,
          "a card and its driver; to try it without: sudo rdma link add rxe0 type rxe netdev INTERFACE "
          "(soft-RoCE, needs the kernel module rdma_rxe)"}}}}};
}

CheckTable rdma_ports() {
  const std::string seen = "{name}: {state_text} ({phys_state}), {link_layer}, {rate} in {folder}/state";
  const std::string lost = "nothing travels over {name}";
  return {topic::kRdma,
          "rdma-ports",
          {{kPorts,
            {{has("active"), State::ok, seen},
             {has("without_subnet_manager"), State::broken, seen,
              lost + ": its link is up, but no subnet manager has configured it",
              "start a subnet manager: sudo systemctl start opensm, or the one in the switch; sminfo shows it"},
             {has("ethernet"), State::broken, seen, lost,
              "sudo ip link set {interface_name} up; then cable and switch port: ethtool {interface_name}"},
             {always(), State::broken, seen, lost,
              "check cable and switch port: ibstat, iblinkinfo; a port that was disabled: sudo ibportstate LID PORT "
              "enable"}}},
           {kHost, {no_device()}}},
          one_port_works};
}

CheckTable rdma_gids() {
  const std::string table = "{folder}/gids";
  const std::string give_address =
      "give the interface an address that its peers reach: sudo ip address add 10.0.0.1/24 dev {interface_name}";
  // rdma-ports reports an inactive port; without a link it has no GIDs.
  const Predicate infiniband = has("active") && lacks("ethernet"), ethernet = has("active") && has("ethernet");
  return {
      topic::kRdma,
      "rdma-gids",
      {{kPorts,
        {{infiniband && has("gid"), State::ok, "{name}: {gid} in " + table + "/{gid_index}"},
         {infiniband, State::broken, "{name}: " + table + " has none",
          "connections by rdma_cm and ofi's verbs find no source address",
          "the subnet manager sets it: sudo systemctl restart opensm, then ibv_devinfo -v"},
         {ethernet && lacks("gid"), State::broken, "{name}: " + table + " has none",
          "nothing can be addressed over this port",
          "sudo ip link set {interface_name} up && sudo ip address add 10.0.0.1/24 dev {interface_name}"},
         {ethernet && lacks("gid_v2"), State::broken,
          "{name}: only '{gid_type}' in {folder}/gid_attrs/types/{gid_index}",
          "RoCE v1 frames pass no router and many switches drop them; peers that speak RoCE v2 are not reached",
          "a firmware and driver with RoCE v2: sudo mlxconfig -d MST_DEVICE set ROCE_CONTROL=2, and for rdma_cm: sudo "
          "cma_roce_mode -d {device} -p 1 -m 2"},
         {ethernet && has("gid_link_local"), State::warning,
          "{name}: RoCE v2 only with a link-local address in " + table + "/{gid_index}",
          "no connection to hosts behind a router, and none to an IPv4 address of a cluster file", give_address},
         {ethernet, State::ok, "{name}: RoCE v2 {gid_address} in " + table + "/{gid_index}"}}},
       {kHost, {no_device(), {lacks("active_port"), State::not_applicable, "no active port"}}}}};
}

CheckTable rdma_pkeys() {
  // RoCE has the default key alone. On InfiniBand the subnet manager fills the table when it activates the port.
  const Predicate has_partitions = has("active") && lacks("ethernet");
  return {
      topic::kRdma,
      "rdma-pkeys",
      {{kPorts,
        {{has_partitions && has("pkey"), State::ok, "{name}: {pkey} in {folder}/pkeys/{pkey_index}, full member"},
         {has_partitions && has("pkey_limited"), State::broken,
          "{name}: only keys of limited members in {folder}/pkeys",
          "limited members of a partition reach full members only, not each other",
          "make these ports full members in the subnet manager: /etc/opensm/partitions.conf, "
          "Default=0x7fff,ipoib:ALL=full;"},
         {has_partitions, State::broken, "{name}: no key in {folder}/pkeys", "the port belongs to no partition",
          "add it to a partition in the subnet manager: /etc/opensm/partitions.conf"}}},
       {kHost,
        {no_device(),
         {lacks("active_infiniband_port"), State::not_applicable, "partitions are InfiniBand's; no active port is"}}}}};
}

CheckTable rdma_mtu() {
  const std::string seen = "{name}: active {mtu}, largest {largest_mtu} (libibverbs)";
  const std::string lost = "more and smaller packets than the card could send";
  const Predicate is_small = has("active") && below("mtu", "largest_mtu");
  return {topic::kRdma,
          "rdma-mtu",
          {{kPorts,
            {{has("active") && lacks("mtu"), State::unknown, "{name}: libibverbs does not open the device"},
             {is_small && has("ethernet"), State::warning, seen, lost,
              "sudo ip link set {interface_name} mtu 4200 (or 9000), on every host and switch port of this network"},
             {is_small, State::warning, seen, lost,
              "let the subnet manager raise it: mtu=5 (4096) in /etc/opensm/partitions.conf"},
             {has("active"), State::ok, seen}}},
           {kHost, {no_device(), {lacks("active_port"), State::not_applicable, "no active port"}}}}};
}

/// Whether libibverbs opens the devices: kernel, node in /dev, rights and the provider of rdma-core in one attempt.
CheckTable rdma_verbs() {
  const std::string lost = "UCX and libfabric cannot use {name}";
  const std::string package =
      "sudo apt install ibverbs-providers (Debian, Ubuntu) or sudo dnf install libibverbs (RHEL); ibv_devices lists "
      "what it sees";
  return {topic::kRdma,
          "rdma-verbs",
          {{kDevices,
            {{has("opened"), State::ok, "{name}: libibverbs opens {node}"},
             {lacks("uverbs"), State::broken, "{name}: nothing in /sys/class/infiniband_verbs names it", lost,
              "sudo modprobe ib_uverbs"},
             {lacks("node_exists"), State::missing, "{name}: no {node}", lost,
              "in a container: docker run --device={node} (Kubernetes: an RDMA device plug-in); on the host: sudo "
              "udevadm trigger"},
             {is("open_error", "Permission denied"), State::broken, "{name}: {node}: {open_error}",
              "this user cannot use the device",
              "udev rules of rdma-core give it to all: sudo chmod 0666 {node}, for good in "
              "/etc/udev/rules.d/90-rdma.rules: KERNEL==\"uverbs*\", MODE=\"0666\""},
             {has("open_error"), State::broken, "libibverbs cannot open {name}: {open_error}", lost,
              "ibv_devinfo -d {name} and dmesg say more"},
             {has("verbs_reason"), State::missing, "{name}: {verbs_reason}", lost, package},
             {always(), State::missing, "libibverbs does not list {what}: it has no provider for it", lost, package}}},
           {kHost, {no_device()}}}};
}

CheckTable memlock() {
  // A queue pair and its completion queue alone need some hundred KiB.
  constexpr uint64_t kTooLittle = 1 << 20;
  // The parameters of common models fit above 1 GiB: no warning.
  constexpr uint64_t kPlenty = uint64_t{1} << 30;
  const std::string seen = "{memlock_text} in /proc/self/limits (Max locked memory)";
  const std::string remedy =
      "ulimit -l unlimited; for good: '* - memlock unlimited' in /etc/security/limits.d/rdma.conf, "
      "LimitMEMLOCK=infinity in a systemd unit, docker run --ulimit memlock=-1";
  return {topic::kRdma,
          "memlock",
          {{kHost,
            {{lacks("memlock"), State::unknown, "/proc/self/limits has no number for 'Max locked memory'",
              "RDMA pins what it registers, and a limit refuses it", "ulimit -l"},
             {is("memlock", "unlimited"), State::ok, "unlimited in /proc/self/limits"},
             {has("may_lock"), State::ok, seen + ", lifted by CAP_IPC_LOCK (/proc/self/status)"},
             {below("memlock", kTooLittle), State::broken, seen,
              "RDMA cannot even register what a connection needs: it is refused with ENOMEM", remedy},
             {below("memlock", kPlenty), State::warning, seen,
              "larger models cannot be registered for RDMA: it is refused with ENOMEM", remedy},
             {always(), State::ok, seen}}}}};
}

CheckTable gpu_driver() {
  const std::string file = "/proc/driver/nvidia/version";
  const std::string unbound = "GPU {name}: {bound} ({folder}/driver)", lost = "CUDA does not see this GPU";
  const Predicate no_trace = lacks("gpus") && lacks("module_line");
  return {
      topic::kGpu,
      "gpu-driver",
      {{kGpus,
        {{has("open_error"), State::broken, "GPU {name}: {open_error}", "no tower and no ps can use this GPU",
          "nvidia-smi: another process may use it, or its memory; dmesg | grep -i nvrm"},
         // Only CUDA's list has a GPU without a PCI function: a container can hide /sys of the device.
         {lacks("folder"), State::ok, "GPU {name} by libcuda.so.1"},
         {is("driver", "nvidia"), State::ok, "GPU {name} in {folder}"},
         {is("driver", "nouveau"), State::broken, unbound, lost,
          "echo blacklist nouveau | sudo tee /etc/modprobe.d/nouveau.conf && sudo update-initramfs -u, then reboot"},
         {always(), State::broken, unbound, lost, "sudo modprobe nvidia; then sudo dmesg | grep -i nvrm"}}},
       {kHost,
        // A host without GPU and kernel module has nothing to repair, unless its CUDA library fails.
        {{no_trace && (lacks("cuda_error") || has("cuda_absent")), State::not_applicable,
          "no NVIDIA GPU in /sys/bus/pci/devices"},
         {no_trace, State::warning, "libcuda.so.1 is here: {cuda_error}",
          "if this host has a GPU, towers run on CPUs all the same", "nvidia-smi; dmesg | grep -i nvrm"},
         {has("cuda_version") && has("module_version"), State::ok,
          "CUDA {cuda_version} by libcuda.so.1; " + file + ": {module_version}"},
         {has("cuda_version"), State::ok, "CUDA {cuda_version} by libcuda.so.1"},
         {lacks("module_line"), State::missing, "no " + file, "CUDA sees no GPU; towers run on CPUs",
          "sudo apt install nvidia-open (or cuda-drivers), then sudo modprobe nvidia"},
         {always(), State::broken, file + ": {module_line}; {cuda_error}", "CUDA sees no GPU; towers run on CPUs",
          "reboot after an upgrade of the driver: library and kernel module have one version; nvidia-smi; dmesg | grep "
          "-i nvrm"}}}}};
}

CheckTable gpu_nic_access() {
  return {
      topic::kGpu,
      "gpu-nic-access",
      {{kGpus,
        {{lacks("by_cuda"), State::none},
         {has("dma_buf"), State::ok, "GPU {name}: by dma-buf (libcuda.so.1)"},
         {has("peer_module"), State::ok, "GPU {name}: by the kernel module {peer_module}"},
         {always(), State::missing, "GPU {name}: no dma-buf (libcuda.so.1), and {peer_error}",
          "no NIC reads GPU memory: gradients are staged through host memory",
          "dma-buf: NVIDIA's open kernel modules from 515 on (sudo apt install nvidia-open) and Linux from 5.12 on; "
          "or sudo modprobe nvidia_peermem (after ib_core), for good: echo nvidia_peermem | sudo tee "
          "/etc/modules-load.d/nvidia_peermem.conf"}}},
       {kHost,
        {{lacks("gpus"), State::not_applicable, "no NVIDIA GPU in /sys/bus/pci/devices"},
         {lacks("cuda_version"), State::unknown, "CUDA does not answer"}}}}};
}

CheckTable gpu_cublas() {
  return {topic::kGpu,
          "gpu-cublas",
          {{kHost,
            {{has("cublas"), State::ok, "{cublas}"},
             {has("cublas_error"), State::missing, "{cublas_error}",
              "training on a GPU cannot multiply matrices: towers run on CPUs",
              "python3 -m pip install nvidia-cublas (nvidia-cublas-cu12 for a driver of CUDA 12), or sudo apt install "
              "libcublas12 (Debian non-free, Ubuntu multiverse); GRADRAIL_CUDA_LIBRARIES names another folder"},
             {lacks("gpus"), State::not_applicable, "no NVIDIA GPU in /sys/bus/pci/devices"},
             {always(), State::unknown, "CUDA does not answer, or shows no GPU"}}}}};
}

Row no_card() {
  return {lacks("cards"), State::not_applicable, "neither an NVIDIA GPU nor an RDMA card on the PCI bus"};
}

CheckTable pci_link() {
  const std::string seen = "{address}: x{width} of x{max_width}, {speed} of {max_speed} in {folder}/current_link_*";
  // GPUs that idle lower their speed, so for them only the width counts.
  const Predicate slow = lacks("gpu") && differ("speed", "max_speed");
  return {topic::kPci,
          "pci-link",
          {{kCards,
            {{lacks("speed") || lacks("width"), State::unknown, "{address}: no {folder}/current_link_speed",
              "how fast its link is is not known", "sudo lspci -vv | grep LnkSta:"},
             {slow || differ("width", "max_width"), State::warning, seen, "less bandwidth than card and slot can have",
              "reinsert the card, or use a slot with more lanes: sudo lspci -vv -s {address} | grep LnkSta"},
             {always(), State::ok, seen}}},
           {kHost, {no_card()}}}};
}

CheckTable pci_acs() {
  return {topic::kPci,
          "pci-acs",
          {{&Machine::bridges,
            {{has("config_is_short"), State::unknown, "{folder}/config: only its first 64 bytes may be read",
              "bridges may send traffic between GPU and NIC up to the root", "sudo gradrail doctor"},
             {lacks("acs_redirects"), State::ok, "{address}: no redirect ({folder}/config)"},
             {always(), State::warning,
              "{address}: redirects peers' requests or completions ({folder}/config, ACS control {acs_redirects})",
              "what goes between GPU and NIC goes up to the root and back: slower, and with an IOMMU it may fail",
              "where no virtual machines need it: sudo setpci -s {address} ECAP_ACS+0x6.w=0000 after each boot, or the "
              "kernel parameter pci=disable_acs_redir={address} (NCCL user guide, Troubleshooting, ACS)"}}},
           {kHost,
            {{lacks("gpus"), State::not_applicable, "no NVIDIA GPU in /sys/bus/pci/devices"},
             {lacks("bridges"), State::not_applicable, "no bridges above them in /sys/bus/pci/devices"}}}}};
}

CheckTable iommu() {
  return {topic::kPci,
          "iommu",
          {{kCards,
            {{lacks("iommu"), State::ok, "{address}: no {folder}/iommu_group"},
             {is("iommu", "identity"), State::ok, "{address}: {iommu_file}: identity"},
             {always(), State::warning, "{address}: {iommu_file}: {iommu} (/proc/cmdline: {kernel_command_line})",
              "every transfer is translated: slower, and peer-memory transfers between GPU and NIC fail or go astray",
              "the kernel parameter iommu=pt (with intel_iommu=on or amd_iommu=on), in GRUB_CMDLINE_LINUX of "
              "/etc/default/grub, then sudo update-grub and reboot"}}},
           {kHost, {no_card()}}}};
}

CheckTable numa_balancing() {
  const std::string file = "/proc/sys/kernel/numa_balancing";
  const std::string seen = file + ": {numa_balancing}, {numa_nodes} NUMA nodes";
  return {topic::kHost,
          "numa-balancing",
          {{kHost,
            {{lacks("numa_balancing"), State::not_applicable, "no " + file},
             // A single node has no other node to which a page can move: the kernel does not scan.
             {is("numa_balancing", "0") || below("numa_nodes", 2), State::ok, seen},
             {always(), State::warning, seen,
              "the kernel unmaps pages to see which threads use them: pauses of milliseconds, and pinned pages that "
              "GPUs and NICs use do not move anyway",
              "sudo sysctl kernel.numa_balancing=0; for good in /etc/sysctl.d/90-gradrail.conf"}}}}};
}

CheckTable hugepages() {
  const std::string seen = "/sys/kernel/mm/transparent_hugepage/enabled: {hugepages}";
  return {topic::kHost,
          "hugepages",
          {{kHost,
            {{lacks("hugepages"), State::not_applicable, "no /sys/kernel/mm/transparent_hugepage/enabled"},
             {has("hugepages_on_request"), State::ok, seen},
             {always(), State::warning, seen, "memory comes in pages of 4 KiB: NICs translate more addresses, slowly",
              "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"}}}}};
}

CheckTable cpu_governor() {
  return {
      topic::kHost,
      "cpu-governor",
      {{kHost,
        {{lacks("governors"), State::not_applicable, "no /sys/devices/system/cpu/cpu*/cpufreq (a virtual machine?)"},
         {lacks("slow_governor_file"), State::ok, "{governors} in /sys/devices/system/cpu/cpu*/cpufreq"},
         {always(), State::warning, "{slow_governor_file}: {governors}",
          "cores that waited are slow when data arrive: longer and unsteady latencies",
          "sudo cpupower frequency-set -g performance"}}}}};
}

CheckTable cgroup_limits() {
  // The scale is a model of 100 million parameters with Adam, which takes 1.2 GB at its ps; 2 GiB is no room for more.
  constexpr uint64_t kLittleMemory = uint64_t{2} << 30;
  // Percent: two CPUs. A task has at least a thread that spins and one for gRPC.
  constexpr uint64_t kLittleCpu = 200;
  constexpr uint64_t kFewTasks = 200;  // gRPC alone takes a dozen threads a process
  const std::string cpu = "{cpu_file}: {cpu_percent} % of one cpu";
  return {topic::kHost,
          "cgroup-limits",
          {{kHost,
            {{below("memory_left", kLittleMemory), State::warning, "{memory_left_text}",
              "parameters, slots and pinned memory of all tasks in it must fit, else they are killed",
              "docker run --memory 16g, MemoryMax= in the systemd unit, srun --mem"},
             {has("memory_left"), State::ok, "{memory_left_text}"}}},
           {kHost,
            {{below("tasks_left", kFewTasks), State::warning, "{tasks_left_text}", "threads cannot be started",
              "docker run --pids-limit 4096, TasksMax= in the systemd unit"},
             {has("tasks_left"), State::ok, "{tasks_left_text}"}}},
           {kHost,
            {{below("cpu_percent", kLittleCpu), State::warning, cpu,
              "threads that spin use it up and are then stopped for the rest of each period: pauses of 50 ms and more",
              "docker run --cpus 4, CPUQuota= in the systemd unit; until then gradrail train --wait block"},
             {has("cpu_percent"), State::ok, cpu},
             {always(), State::ok, "no limit on cpu (/proc/self/cgroup)"}}}}};
}

CheckTable tasks() {
  const std::string open_port =
      "on that host: sudo firewall-cmd --add-port={port}/tcp, or sudo ufw allow {port}/tcp; cloud: its security group";
  const std::string seen = "{name}: {error}";
  return {topic::kNetwork,
          "tasks",
          {{&Machine::servers,
            {{is("result", "connected"), State::ok, "{name}: connected"},
             {is("result", "unresolved"), State::broken, seen, "the name stands for no address here",
              "getent hosts {host}; /etc/hosts or the DNS"},
             {is("result", "refused"), State::missing, seen + ": the host is there, no process listens at the port",
              "the task is not running there yet, or listens at another address",
              "start it: gradrail train --job_name ps ...; on that host: ss -ltn | grep {port}"},
             {is("result", "small_packets"), State::broken, "{name}: connected, but {error}",
              "workers join, and their data connections fail",
              "ping -M do -s 1472 {host}; permit ICMP on the way, or lower the MTU of both hosts"},
             {is("result", "no_answer"), State::broken,
              seen + " at all, as when a firewall drops packets, or the host is off",
              "workers wait for this task in vain", "ping {host}; " + open_port},
             {always(), State::broken, seen, "workers on this host cannot reach the task",
              "the address in the cluster file; ip route get {host}; sudo nft list ruleset | grep -E 'drop|reject' "
              "here; " +
                  open_port}}},
           {kHost,
            {{has("servers_error"), State::unknown, "{servers_error}", "whether the tasks can be reached is not known",
              "getent hosts NAME for each name of the cluster"},
             {lacks("servers"), State::not_applicable, "no --cluster and no --ps_hosts"}}}}};
}

void look_at(const Facts& object, const Look& look, std::vector<Finding>& findings) {
  for (const Row& row : look.rows) {
    if (!row.applies(object)) continue;
    if (row.state == State::none) return;
    findings.push_back({row.state, object.fill(row.evidence), object.fill(row.consequence), object.fill(row.remedy)});
    return;
  }
}

}  // namespace

const std::vector<CheckTable>& check_tables() {
  static const std::vector<CheckTable> tables = {
      rdma_devices(), rdma_ports(),     rdma_gids(),      rdma_pkeys(),   rdma_mtu(),      rdma_verbs(),
      memlock(),      gpu_driver(),     gpu_nic_access(), gpu_cublas(),   pci_link(),      pci_acs(),
      iommu(),        numa_balancing(), hugepages(),      cpu_governor(), cgroup_limits(), tasks()};
  return tables;
}

Check judge(const CheckTable& table, const Machine& machine) {
  std::vector<Finding> findings;
  for (const Look& look : table.looks) {
    if (const auto* const host = std::get_if<Facts Machine::*>(&look.objects)) {
      look_at(machine.*(*host), look, findings);
    } else {
      for (const Facts& object : machine.*std::get<1>(look.objects)) look_at(object, look, findings);
    }
  }
  if (table.excused && table.excused(machine)) {
    for (Finding& finding : findings)
      if (!holds_up(finding.state)) finding.state = State::warning;
  }
  return conclude(table.topic, table.name, std::move(findings));
}

}  // namespace gradrail::tools::doctor
