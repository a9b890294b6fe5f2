//! The virtual queue pairs of a set, by number.

use super::qp::EndpointQp;
use super::sizes::EngineQp;
use arrayvec::ArrayVec;
use polyrail_core::hardware::QueuePair;
use polyrail_core::virtual_cq::TargetSet;
use std::collections::HashMap;

/// The virtual queue pairs, each at the index under which it is attached. Numbers of those that
/// left are free.
#[derive(Debug)]
pub(super) struct Members<Q> {
    places: Vec<Option<EndpointQp<Q>>>,
    /// By the numbers that completions carry.
    numbers: HashMap<u32, usize>,
}

impl<Q> TargetSet for Members<Q>
where
    Q: QueuePair,
{
    type Target = EngineQp<Q>;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.get_mut(usize::from(index)).map(|member| &mut *member.qp)
    }
}

impl<Q> Members<Q> {
    #[inline]
    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut EndpointQp<Q>> {
        self.places.get_mut(number)?.as_mut()
    }

    pub(super) fn get(&self, number: usize) -> Option<&EndpointQp<Q>> {
        self.places.get(number)?.as_ref()
    }

    /// Different ones; `None` if one of them is not there, or named twice.
    pub(super) fn get_disjoint_mut<const N: usize>(
        &mut self,
        numbers: [usize; N],
    ) -> Option<[&mut EndpointQp<Q>; N]> {
        let places = self.places.get_disjoint_mut(numbers).ok()?.map(Option::as_mut);
        let members: ArrayVec<_, N> = places.into_iter().flatten().collect();
        members.into_inner().ok()
    }

    /// Numbers are below this.
    pub(super) fn bound(&self) -> usize {
        self.places.len()
    }

    /// The lowest number that is free.
    pub(super) fn free(&self) -> usize {
        self.places.iter().position(Option::is_none).unwrap_or(self.places.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &EndpointQp<Q>)> {
        let member = |(number, place)| Some((number, Option::as_ref(place)?));
        self.places.iter().enumerate().filter_map(member)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut EndpointQp<Q>)> {
        let member = |(number, place)| Some((number, Option::as_mut(place)?));
        self.places.iter_mut().enumerate().filter_map(member)
    }
}

impl<Q: QueuePair> Members<Q> {
    /// Gives the virtual queue pair a number, below which all numbers have a place.
    pub(super) fn put(&mut self, number: usize, member: EndpointQp<Q>) {
        if number == self.places.len() {
            self.places.push(None);
        }
        self.numbers.insert(member.virtual_qp().virtual_qp_num(), number);
        self.places[number] = Some(member);
    }

    /// Takes it out; its number is free again.
    pub(super) fn take(&mut self, number: usize) -> Option<EndpointQp<Q>> {
        let member = self.places.get_mut(number)?.take()?;
        self.numbers.remove(&member.virtual_qp().virtual_qp_num());
        Some(member)
    }

    pub(super) fn number_of(&self, virtual_qp_num: u32) -> Option<usize> {
        self.numbers.get(&virtual_qp_num).copied()
    }
}

impl<Q: QueuePair> FromIterator<EndpointQp<Q>> for Members<Q> {
    fn from_iter<I: IntoIterator<Item = EndpointQp<Q>>>(members: I) -> Self {
        let mut all = Self { places: Vec::new(), numbers: HashMap::new() };
        members.into_iter().enumerate().for_each(|(number, member)| all.put(number, member));
        all
    }
}
