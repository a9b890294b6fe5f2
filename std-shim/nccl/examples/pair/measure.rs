//! Measures half round trips of 8 bytes, and goodput.

use crate::end::{End, WINDOW, fill, until};
use crate::table::Pointer;
use std::time::{Duration, Instant};

/// Runs in the measuring process. Returns a line with the median and mean half round trip in us,
/// and MB/s.
pub(crate) fn run(
    mut end: End,
    bytes: usize,
    rounds: usize,
    messages: usize,
) -> Result<String, String> {
    let latency = latency(&mut end, rounds)?;
    let goodput = stream(&mut end, bytes, messages)?;
    end.close()?;
    let median = latency[latency.len() / 2].as_nanos() as f64;
    let mean = latency.iter().sum::<Duration>().as_nanos() as f64 / latency.len() as f64;
    Ok(format!("{:.2} {:.2} {:.1}", median / 2e3, mean / 2e3, goodput / 1e6))
}

/// Runs in the answering process.
pub(crate) fn answer(
    mut end: End,
    bytes: usize,
    rounds: usize,
    messages: usize,
) -> Result<String, String> {
    for round in 0..(rounds / 10 + rounds) as u64 {
        let request = offer(&mut end)?;
        receive(&mut end, request, round)?;
        send(&mut end, round)?;
    }
    let mut under_way = [None; WINDOW];
    for message in 0..messages + WINDOW {
        let place = message % WINDOW;
        if let Some(request) = under_way[place].take() {
            let sizes = until("a receive", || end.table.test(request))?;
            if sizes[0] as usize != bytes {
                return Err(format!("{} bytes came, not {bytes}", sizes[0]));
            }
        }
        if message < messages {
            under_way[place] = Some(until("irecv", || end.irecv(place * bytes, bytes))?);
        }
    }
    send(&mut end, 0)?;
    let mut expected = vec![0; bytes];
    for place in 0..WINDOW.min(messages) {
        fill(&mut expected, place);
        if expected != end.to[place * bytes..(place + 1) * bytes] {
            return Err("what came is not what was sent".into());
        }
    }
    end.close()?;
    Ok(String::new())
}

/// Returns the times of round trips of 8 bytes, shortest first.
fn latency(end: &mut End, rounds: usize) -> Result<Vec<Duration>, String> {
    let mut took = Vec::with_capacity(rounds);
    let warm_up = rounds / 10;
    for round in 0..(warm_up + rounds) as u64 {
        let request = offer(end)?;
        let begin = Instant::now();
        send(end, round)?;
        receive(end, request, round)?;
        if round >= warm_up as u64 {
            took.push(begin.elapsed());
        }
    }
    took.sort_unstable();
    Ok(took)
}

/// Returns bytes per second of long messages, from posting the first until the answer arrives.
fn stream(end: &mut End, bytes: usize, messages: usize) -> Result<f64, String> {
    for place in 0..WINDOW {
        fill(&mut end.from[place * bytes..(place + 1) * bytes], place);
    }
    let answer = offer(end)?;
    let mut under_way = [None; WINDOW];
    let begin = Instant::now();
    for message in 0..messages {
        let place = message % WINDOW;
        if let Some(request) = under_way[place].take() {
            until("a send", || end.table.test(request))?;
        }
        under_way[place] = Some(until("isend", || end.isend(place * bytes, bytes))?);
    }
    for request in under_way.into_iter().flatten() {
        until("a send", || end.table.test(request))?;
    }
    until("the answer", || end.table.test(answer))?;
    Ok((messages * bytes) as f64 / begin.elapsed().as_secs_f64())
}

/// Sends 8 bytes, and waits for completion.
fn send(end: &mut End, number: u64) -> Result<(), String> {
    end.from[..8].copy_from_slice(&number.to_le_bytes());
    let request = until("isend", || end.isend(0, 8))?;
    until("a send", || end.table.test(request)).map(drop)
}

/// Posts a receive of 8 bytes.
fn offer(end: &mut End) -> Result<Pointer, String> {
    until("irecv", || end.irecv(0, 8))
}

fn receive(end: &mut End, request: Pointer, number: u64) -> Result<(), String> {
    until("a receive", || end.table.test(request))?;
    // SAFETY: the memory is allocated and initialized.
    let came = unsafe { end.to.as_ptr().cast::<u64>().read_unaligned() };
    if came == number { Ok(()) } else { Err(format!("number {came} came, not {number}")) }
}
