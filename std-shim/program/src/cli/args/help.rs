//! What stands at the end of `--help`.

pub(super) const EXAMPLES: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --scheme dqplb --window 16 --json a b
  polyrail copy --fault 2:64M a b       rail 2 fails after 64 MiB
  polyrail perf --sizes 4K..1M --plot perf.svg
  polyrail perf --line-rate 1G --fault 2:1s:slow:1s --plot goodput.svg      goodput over time
  polyrail serve --device mlx5_0 --device mlx5_1 /data          on one host, and
  polyrail copy --to 10.0.0.2 --device mlx5_0 --device mlx5_1 model.bin     on another, or
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8
  polyrail completions bash > /etc/bash_completion.d/polyrail

Sizes are bytes, or K, M, G, T in powers of 1024, also as KiB or KB.";

pub(super) const COPY_HELP: &str = "\
Examples:
  polyrail copy model.bin /mnt/model.bin
  polyrail copy --rails 8 --devices 2 --scheme dqplb --max-msg-size 128K a b
  polyrail copy --json --quiet a b | jq .gigabytes_per_second
  polyrail copy --fault 2:64M a b       rail 2 fails after 64 MiB
  polyrail copy --fault far.0:50ms:silent:1s --fault 2:64M:slow:1s a b
  polyrail copy --to 10.0.0.2 model.bin                  to a polyrail serve there, over real NICs

DST gets its name when it is complete: a part of it is never visible. Until then it is a file without \
a name, which disappears even if the program is killed, or, where the file system does not support \
that (NFS), a hidden file beside it. If DST is a symbolic link, the file behind it is replaced; a link \
that leads nowhere is refused. A character device such as /dev/null is written in place.

Faults are printed on standard error as they begin and end, with the time since data began to move. A \
fault at so many bytes strikes at that byte; the others, and all ends, are up to a millisecond late. \
They are faults of the software NIC, so --fault goes without --to.

With --to, the file goes over this host's RDMA devices to `polyrail serve` on another host, and DST \
is the copy's name there, if the server writes into a directory [default: SRC's name]. \
It needs a program that was built with --features verbs. Without it the software NIC carries the \
file, within this process.

Exit codes:
  0    copied, and the checksums of both ends agree
  1    something that should not happen
  2    the command line makes no sense, or the devices cannot do it
  3    SRC cannot be read: missing, a directory, no permission, it changed meanwhile
  4    DST cannot be written: a directory, no such directory, no permission
  5    no space for DST, or a limit on the length of files (ulimit -f)
  6    a rail failed, the virtual queue pair could not be set up, or the other host cannot be
       reached, hung up, gave up or fell silent
  7    what arrived differs from what was sent
  8    SRC and DST are the same file
  9    there is no device to run on, and why
  10   copied, but the report could not be written to standard output
  11   not enough memory; a smaller window or message size needs less
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

pub(super) const PERF_HELP: &str = "\
Examples:
  polyrail perf
  polyrail perf --sizes 64K,1M --operations write-imm --threads 2
  polyrail perf --sizes 4K..16M --csv > perf.csv
  polyrail perf --schemes spray --plot perf.svg
  polyrail perf --operations p2p --sizes 8..1M       messages of isend and irecv
  polyrail perf --operations send --sizes 64 --rails 1 --window 1024 --inline 64    messages a second
  polyrail perf --bidirectional --operations write --sizes 1M       both ends send
  polyrail perf --latency --rails 1                 one request of 8 bytes at a time
  polyrail perf --operations fetch-add,compare-swap
  polyrail perf --timeline --seconds 1 --csv > goodput.csv
  polyrail perf --line-rate 1G --fault 2:1s:slow:1s --plot goodput.svg
  polyrail perf --to 10.0.0.2 --device mlx5_0 --device mlx5_1 --rails 8 --window 32

Without --to, requests move through memory of one process, by software, so the figures show the cost \
of the engine and the software NIC, not of a network. With it, they go over this host's RDMA \
devices to `polyrail serve` on another host, one connection for each line; it needs a program that was \
built with --features verbs. Each line also shows a plain memcpy of the same bytes over as much \
of this host's memory, measured in the same run.

p2p measures messages: the receiver offers buffers (irecv) ahead, and the sender sends to them (isend), up to 64 \
at a time, over one rail up to 64 KiB and spread evenly over all from there on. A rail that fails ends it, whatever \
--rail-failure is, and --schemes and --max-msg-size do not matter.

With --latency, one request at a time is answered by one of the same size, and half of the time from its post until \
the answer is there is reported: the shortest, percentiles, the longest, and the mean, off by at most 1 in 1000. 200 \
round trips before that do not count. The receiver of a write looks at its last byte, as that of ib_write_lat does; a write \
that is split over rails is refused, since nobody could see when all of it is there. A read or an atomic is a round trip by \
itself, and its whole time is reported (`halved` tells which it is). With p2p, buffers are offered 32 at a time. Without \
--threads 2 or --to, one thread serves both ends in turn.

With --bidirectional, figures are the sum of both directions, and GB/s there and back are each. Between two hosts the far end \
sends from when the two are connected until this one is done, and reports its own speed.

With --timeline or --fault, one operation, scheme and size is measured in one run, from moment to moment, \
in up to 300 samples. --plot then draws what was acknowledged over all rails, and what was posted to each, over \
time. --csv prints a row for each interval between samples: its end in seconds, GB/s over all rails, GB/s of \
each rail, and what happened in it. --json prints an object: besides the configuration and totals, `samples` \
with the same figures, `marks` (seconds, cause, whether trouble begins or ends, text), and, if there were any, \
`goodput` in GB/s before the first, during the trouble, and after it, with ratios to before. The software NIC \
shares this host's processors, so a rail that is lost costs something only with a --line-rate.

Throughput counts what is acknowledged. For write-imm, send and p2p the server also reports how many \
arrived, and a difference is an error. It does not notice a write, a read or an atomic, so a line of these may \
take no longer than the server's --progress-timeout.

Exit codes:
  0    measured
  1    something that should not happen
  2    the command line makes no sense, or the devices cannot do it
  4    the picture cannot be written: a directory, no such directory, no permission
  5    no space for the picture, or a limit on the length of files (ulimit -f)
  6    a rail failed, by a --fault or by itself, the virtual queue pair could not be set up, or the server cannot be reached,
       hung up, gave up or fell silent
  7    not everything that was sent arrived
  9    there is no device to run on, and why
  10   measured, but the figures could not be written to standard output
  11   not enough memory; smaller or fewer requests need less
  130  interrupted (SIGINT, SIGTERM, or SIGHUP unless it is ignored)";

pub(super) const SERVE_HELP: &str = "\
Examples:
  polyrail serve /data                              every active device
  polyrail serve                                    measurements only, no files
  polyrail serve --device mlx5_0 --once model.bin   one file, and then it ends
  polyrail serve --listen 10.0.0.2:9000 --json /data
  openssl rand -hex 32 > token; polyrail serve --token-file token /data      the same file for copy and perf

Serves `polyrail copy --to` and `polyrail perf --to` from other hosts, --peers of them at a time (each \
line of perf is one), and prints what each did. Peers decide on rails, scheme and sizes. Rails \
take the devices of each side in turn, so the i-th here has to reach the i-th there, or with fewer on one side, several. A file \
replaces an older one of its name when it is complete, unless --no-overwrite forbids it here or there, \
and keeps that one's permissions; a new one has those of its source, without what the umask takes. In a directory, senders choose the names, which \
cannot lead out of it or through a symbolic link, or be hidden. Without --token-file anybody \
who can connect is served, so listen where only trusted hosts can. Ctrl-C ends it.

It needs a program that was built with --features verbs.

Exit codes: 0 ended by Ctrl-C, or with --once all went well; 1 it cannot listen; 2 the command line \
makes no sense; 9 there is no device to run on; 10 it cannot write its reports to standard output; 130 \
interrupted during a file or a measurement; with --once, those of copy and perf.";

pub(super) const DEVICES_HELP: &str = "\
Shows devices, ports, addresses (the gid index is what --gid-index takes) and limits. With --verbose also \
what matters for choosing among them: NUMA node and processors near each (`taskset -c`), its place on PCI, \
the link there and what it could be, firmware.

Exit codes: 0 there are devices; 1 something that should not happen; 2 the command line makes no \
sense; 9 there are no devices, and why; 10 it cannot write to standard output.";
