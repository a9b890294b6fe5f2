//! Examples, notes and exit codes at the end of `--help`.

pub(super) const EXAMPLES: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --scheme dqplb --window 16 --json a b
  polyrail copy checkpoint vocab.txt /mnt/backup        directories and files into a directory
  polyrail copy --fault 2:64M a b       rail 2 fails after 64 MiB
  polyrail perf --sizes 4K..1M --plot perf.svg
  polyrail perf --line-rate 1G --fault 2:1s:slow:1s --plot goodput.svg      goodput over time
  polyrail serve /data                                          on one host, and
  polyrail copy --to 10.0.0.2 model.bin                         on another, over TCP or RDMA
  polyrail serve --device mlx5_0 --device mlx5_1 /data          on one host, and
  polyrail copy --to 10.0.0.2 --device mlx5_0 --device mlx5_1 model.bin     on another, or
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8
  polyrail completions bash > /etc/bash_completion.d/polyrail

Sizes are in bytes, or with K, M, G or T (also KiB or KB) in powers of 1024. Times are in seconds, or \
with a unit: 1.5s, 200ms, 50us.";

pub(super) const COPY_HELP: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy checkpoint vocab.txt /mnt/backup        directories and files into a directory
  polyrail copy --rails 8 --devices 2 --scheme dqplb --max-msg-size 128K a b
  polyrail copy --json --quiet a b | jq .gigabytes_per_second
  polyrail copy --fault 2:64M a b       rail 2 fails after 64 MiB
  polyrail copy --fault far.0:50ms:silent:1s --fault 2:64M:slow:1s a b
  polyrail copy --to 10.0.0.2 model.bin checkpoint       to a polyrail serve there
  polyrail copy 10.0.0.2:checkpoint /mnt                 from a polyrail serve --readable there
  polyrail copy --to 10.0.0.2 --device tcp:eth0 --device tcp:eth1 model.bin      over two interfaces

Directories, several sources, and a file whose DST is a directory get their own names in the directory \
DST, which is made if it is missing, or in the directory that the server serves. They keep their times, \
permissions and holes; a server limits permissions by its umask. A file that is there with the same size \
and time is not sent again. If the copy breaks, complete files stay, and the same command sends the \
rest. Symbolic links to files are followed; other links, pipes, sockets and devices in directories are \
skipped.

HOST:PATH or HOST:PORT:PATH is a file or directory in the directory that a server serves; an IPv6 \
address is in brackets. A file of this host whose name has a colon is ./NAME.

A single file is always sent. DST appears only when the copy is complete. Until then the copy is a file \
without a name, which disappears even if the program is killed; on file systems without such files \
(NFS), it is a hidden file beside DST. If DST is a symbolic link, the file that it points to is \
replaced; a dangling link is refused. A character device such as /dev/null is written in place.

If SRC changes during the copy, the copy fails, except for changes that SRC's times do not show: writes \
through a shared mapping (mmap with MAP_SHARED), for example by a database. Do not copy a file that a \
program has mapped for writing.

The begin and end of each fault is printed on standard error, with the time since data began to move. \
A fault at a number of bytes begins at exactly that byte; a fault at a time, and the end of any fault, \
is up to a millisecond late. Only the software NIC can inject faults, so --fault cannot be combined \
with --to.

With --to, the file goes to `polyrail serve` on another host: over RDMA devices if both hosts have \
active ones, otherwise over TCP, on every network interface that shares a network with the server's, \
up to one for each rail (--rails). If the server writes into a directory, --name is the name of a single file there [default: the name of \
SRC]. Without --to and HOST:PATH, the software NIC carries the files within this process.

Columns of the report, with a row for each rail at each end that is on this host:
  side              sender or receiver
  rail, device      number of the rail, or notify for the queue pair of notifications; its device
  qp_num            number of the queue pair that the rail has now
  bytes             payload posted to the device, again if it was posted again after a failure
  requests          send requests posted to the device; a fragment is one
  doorbells         calls that posted them: each may post several
  completions       completions of sends and receives taken from the device
  errors            completions that reported a failure
  failures          times that the rail failed and other rails took over
  state at the end  in service, or, after a failure, what the rail waits for: draining (its
                    completions), fenced (the count of the other end), down (a new queue pair),
                    joining (the other end's new queue pair)
After a copy from HOST:PATH, the bytes of the receiver's rails are only credits and answers; the report of \
the server has the data.

Exit codes:
  0    copied, and the checksums of both ends agree
  1    internal error
  2    invalid command line, or an option that the devices do not support
  3    SRC cannot be read: missing, no permission, or it changed during the copy
  4    DST cannot be written: no such directory, no permission, or a file where a directory is needed
  5    no space for DST, or a limit on the length of files (ulimit -f)
  6    a rail failed, the virtual queue pair could not be set up, or the other host could not be
       reached, closed the connection, stopped answering or reported a failure: also when it
       cannot read or write a file, or has no space
  7    the data that arrived differs from the data that was sent
  8    SRC and DST are the same file, or DST is in the directory SRC
  9    no device can be used; the message says why
  10   copied, but the report could not be written to standard output
  11   not enough memory: choose a smaller window or message size; or no thread can be started
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

pub(super) const PERF_HELP: &str = "\
Examples:
  polyrail perf
  polyrail perf --sizes 64K,1M --operations write-imm --threads 2
  polyrail perf --sizes 4K..16M --csv > perf.csv
  polyrail perf --schemes spray --plot perf.svg
  polyrail perf --operations p2p --sizes 8..1M       messages of isend and irecv
  polyrail perf --operations send --sizes 64 --rails 1 --window 1024 --inline 64    messages per second
  polyrail perf --bidirectional --operations write --sizes 1M       both ends send
  polyrail perf --latency --rails 1                 one request of 8 bytes at a time
  polyrail perf --operations fetch-add,compare-swap
  polyrail perf --latency --rails 1 --plot latency.svg      with a histogram
  polyrail perf --interval 1s --seconds 1000        until Ctrl-C, a line each second
  polyrail perf --timeline --seconds 1 --csv > goodput.csv
  polyrail perf --line-rate 1G --fault 2:1s:slow:1s --plot goodput.svg
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8 --window 32
  polyrail perf --to 10.0.0.2 -d mlx5_0 -q 1 -s 64K -t 128 -D 10 -x 3       options as perftest's

Without --to, the software NIC copies the data within the memory of this process, so the figures show \
the cost of the engine and of the software NIC, not of a network. With --to, the data goes to \
`polyrail serve` on another host, over a new connection for each line of the table: over RDMA devices if \
both hosts have active ones, otherwise over TCP. Each line also shows the throughput of a \
plain memcpy of the same bytes, measured on this host in the same run.

p2p measures messages: the receiver offers buffers in advance (irecv), up to 64 at a time, and the \
sender sends to them (isend). Messages of up to 64 KiB use one rail, longer ones are spread evenly over \
all rails. A rail that fails ends the measurement, whatever --rail-failure says. --schemes and \
--max-msg-size have no effect.

With --latency, each request is answered by a request of the same size before the next one is posted. \
The figures are half the time from posting a request until its answer has arrived: minimum, percentiles, \
maximum and mean, accurate to 1 in 1000, after 200 round trips that are not counted. The receiver of a \
write polls the last byte, as ib_write_lat does; a write that is split over several rails is refused, \
since its fragments arrive in any order and the last byte proves nothing. A read or an atomic is a round \
trip by itself, so its whole time is reported (`halved` in CSV and JSON shows which). With p2p, buffers \
are offered 16 at a time, with one request. Without --threads 2 or --to, one thread serves both ends in turn.

With --bidirectional, the figures are the sum of both directions; \"GB/s there\" and \"GB/s back\" are \
the directions. Between two hosts the far end sends from the moment the two are connected until this \
end is done, and reports its throughput.

Options of perftest (ib_write_bw and others) keep their letters where they mean the same: -s -a -n -D -q \
-t -b -m -I -u -d -x -S. The page measuring.md maps the usual ones, and says what differs: \
std-shim/program/docs/measuring.md in the repository, and below /usr/share/doc/polyrail with the Debian \
package.

Columns of --latency: round trips is how many were measured; then microseconds: the shortest, the \
percentiles 50, 90, 99 and 99.9, the longest, and the mean.

Columns of --interval: seconds since the begin at the end of the interval, GB/s acknowledged over all \
rails, and GB/s posted to each rail. The table of rails at the end of --timeline, --interval and --fault: \
GB/s posted over the whole time, how often the rail failed, and whether it is in service at the end or \
down since when.

Each line is printed when it is measured. Ctrl-C ends the measurement: the line in progress has the figures \
until then, the others are left out, and --plot draws what there is.

With --timeline, --interval or --fault, one operation, scheme and size is measured in one run, with up to \
300 samples unless --interval chooses their distance. --plot then draws, over time, the bytes acknowledged over all rails and the bytes posted to \
each rail. --csv prints a row for each interval between two samples: its end in seconds, GB/s over all \
rails, GB/s of each rail, and the faults and rail events within it. --json prints an object with the \
configuration, totals, `rail_states`, `samples` (the same figures; a short last interval is joined with the one before) and `marks` (seconds, cause, whether a fault or \
failure begins or ends, text); if there are marks, `goodput` is the GB/s before the first mark, until all \
faults and failures are over, and after that, with ratios to the first. The software NIC runs on this host's \
processors, so losing a rail lowers goodput only with --line-rate.

Throughput counts acknowledged bytes. For write-imm, send and p2p the server also counts arrivals, and \
a difference is an error. The server cannot see a write, a read or an atomic, so a line that measures \
one of these must take less time than the server's --progress-timeout.

Columns of throughput; rates are medians of five rounds:
  operation, scheme  what is measured; a dash if the scheme makes no difference
  size               bytes of a request
  msgs/s             requests acknowledged a second
  GB/s, Gbit/s       their payload, in 10^9 bytes and 10^9 bits a second
  ns/msg             nanoseconds a request: a second divided by msgs/s
  bells/msg          doorbells (calls that post) of the sender for a request, over all rails
  compl/msg          completions that the sender takes for a request
  CPU %              processor time of this process, in user space and in the kernel; 100 is one
                     processor. Polling uses all of one. Without --to it includes both ends.
  memcpy GB/s        a memcpy of the same bytes on this host
  of memcpy          GB/s divided by memcpy GB/s
  GB/s there, back   with --bidirectional: each direction

Exit codes:
  0    measured
  1    internal error
  2    invalid command line, or an option that the devices do not support
  4    the picture cannot be written: a directory, no such directory, no permission
  5    no space for the picture, or a limit on the length of files (ulimit -f)
  6    a rail failed (by itself or because of --fault), the virtual queue pair could not be set up,
       or the server could not be reached, closed the connection, reported a failure or stopped
       answering
  7    fewer requests arrived than were sent
  9    no device can be used; the message says why
  10   measured, but the figures could not be written to standard output
  11   not enough memory: choose smaller requests or a smaller window; or no thread can be started
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored); what was measured is printed";

pub(super) const SERVE_HELP: &str = "\
Examples:
  polyrail serve /data                              every active device and network interface
  polyrail serve                                    measurements only, no files
  polyrail serve --readable /data                   peers can also read files with copy HOST:PATH
  polyrail serve --device mlx5_0 --once model.bin   one file, then exit
  polyrail serve --device tcp:eth0 --tcp-port 7472 /data       over TCP, through a firewall
  polyrail serve --listen 10.0.0.2:9000 --json /data
  (umask 077; openssl rand -hex 32 > token); polyrail serve --token-file token /data
                                                    the same file for copy and perf

Serves `polyrail copy --to` and `polyrail perf --to` of other hosts, up to --peers of them at a time \
(each line of a perf table counts as one), and prints a report for each. The peer chooses rails, scheme \
and sizes, and whether its rails use RDMA devices or TCP. Rails use the devices of each side in turn. Of \
RDMA devices, the i-th one here must reach the i-th one of the peer; if one side has fewer devices, each \
of them must reach several. Network interfaces are paired with the peer's by their networks.

A complete file replaces an existing file of its name and keeps that file's permissions, unless \
--no-overwrite forbids it on either host. A new file gets the permissions of its source, limited by \
the umask. In a directory, the peer chooses the name of the file or directory, which must not be hidden; \
directories may hold hidden files. Paths with . or .. and symbolic links are refused. With --readable, \
peers can read all files in the directory whose first name is not hidden. Without --token-file, every \
host that can connect is served, so listen only where trusted hosts can connect. Ctrl-C ends the server, \
also during a copy; so do SIGTERM, and SIGHUP unless it is ignored. \
The columns of reports are those of `polyrail copy --help`.

Exit codes: 0 ended by SIGINT (Ctrl-C), SIGTERM or SIGHUP while it served no peer, or with --once the \
peer was served; 1 cannot listen; 2 invalid command line; 9 no device can be used; 10 cannot write \
reports to standard output; 130 ended by one of these signals during a copy or a measurement, or with \
--once before the peer was served; with --once also the exit codes of copy and perf.";

pub(super) const DEVICES_HELP: &str = "\
Lists RDMA devices with ports, GIDs (--gid-index takes the gid index) and limits, and network \
interfaces, which are devices over TCP, with their addresses. With --verbose also what helps to choose a \
device: its NUMA node and nearby processors (for `taskset -c`), its PCI address, its PCI link with the \
fastest link it supports, and its firmware. A device whose PCI link is slower than its ports has a line \
below the tables. If there are no RDMA devices, a note on standard error says what is missing.

Columns of network interfaces:
  state                          up or down
  Gbit/s, address                rate of the link now, a dash if unknown; an address of it
Columns of RDMA devices, ports and addresses:
  guid, type, transport          number that the maker gave the device; what it is; its protocol
  port, state, link              number and state of a port; InfiniBand or Ethernet
  mtu, max mtu                   bytes of payload in a packet, now and at most
  lid, lanes, Gbit/s             address within an InfiniBand subnet; width and rate of the link now
  PCI Gbit/s                     rate of the device's PCI link now, which its ports share; a dash if
                                 unknown
  gid index, type, interface     index for --gid-index; kind of address, such as RoCE v2; the
  gid                            network interface that has it; the address itself
Columns of limits of RDMA devices:
  queue pairs, srqs, regions     how many there may be; srqs are shared receive queues
  requests, completions          of one queue, and of one completion queue
  buffers, reads                 of one request; READs and atomics in flight on one queue pair
  region, message                bytes of the largest region of memory, and of the longest message
  atomics                        none; device: atomic among the requests of this device; global
Columns of --verbose:
  below it                       network device that a device in software, such as rxe, uses
  NUMA node, near CPUs, PCI      node, its processors, and PCI address
  PCI link, PCI link at most     speed and lanes, now and the fastest that the device supports
  firmware, board                version of the firmware, and name of the board

Exit codes: 0 devices found; 1 internal error; 2 invalid command line; 9 no device can be used, and \
the message says why; 10 cannot write to standard output.";
