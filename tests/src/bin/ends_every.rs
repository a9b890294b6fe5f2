fn main() {
    use polyrail_tests::ends::*;
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut shape = Shape::small(polyrail_core::virtual_qp::Scheme::Dqplb);
    shape.jobs[0] = vec![Job::new(Kind::WriteImm, 1)];
    shape.is_brief = true;
    let t = std::time::Instant::now();
    println!("{:?} {:?}", explore(&shape, n), t.elapsed());
}
