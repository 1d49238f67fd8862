//! Storage that the engine's lists are threaded through: numbered places that are used again, and
//! doubly linked lists whose links lie in the elements. Nothing is allocated once the engine has
//! reached its size. An index that names nobody ends a list, so no access can fail.

/// The index of nobody.
pub(super) const NONE: u32 = u32::MAX;

/// Elements by number.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<T>,
    vacant: Vec<u32>,
}

impl<T: Default> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab { places: Vec::new(), vacant: Vec::new() }
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)
    }

    pub(super) fn insert(&mut self, element: T) -> u32 {
        if let Some(at) = self.vacant.pop() {
            if let Some(place) = self.places.get_mut(at as usize) {
                *place = element;
            }
            return at;
        }
        self.places.push(element);
        (self.places.len() - 1) as u32
    }

    /// Takes an element out; its number is given to a later one.
    pub(super) fn remove(&mut self, at: u32) -> T {
        let Some(place) = self.places.get_mut(at as usize) else { return T::default() };
        self.vacant.push(at);
        std::mem::take(place)
    }

    /// Elements that are in it.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }
}

/// An element's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    prev: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Links {
        Links { prev: NONE, next: NONE }
    }
}

/// What can be in list `L`.
pub(super) trait Linked<const L: usize> {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// A list through a slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct List<const L: usize> {
    head: u32,
    tail: u32,
}

impl<const L: usize> List<L> {
    pub(super) fn new() -> List<L> {
        List { head: NONE, tail: NONE }
    }

    pub(super) fn head(&self) -> u32 {
        self.head
    }

    pub(super) fn tail(&self) -> u32 {
        self.tail
    }

    pub(super) fn push_back<T: Linked<L> + Default>(&mut self, slab: &mut Slab<T>, at: u32) {
        self.insert_after(slab, self.tail, at);
    }

    /// Puts `at` behind `before`, or first when that is nobody.
    pub(super) fn insert_after<T: Linked<L> + Default>(
        &mut self,
        slab: &mut Slab<T>,
        before: u32,
        at: u32,
    ) {
        let next = slab.get(before).map_or(self.head, |t| t.links().next);
        if let Some(element) = slab.get_mut(at) {
            *element.links_mut() = Links { prev: before, next };
        }
        self.join(slab, before, at);
        self.join(slab, at, next);
    }

    pub(super) fn unlink<T: Linked<L> + Default>(&mut self, slab: &mut Slab<T>, at: u32) {
        let Some(element) = slab.get_mut(at) else { return };
        let Links { prev, next } = std::mem::take(element.links_mut());
        self.join(slab, prev, next);
    }

    pub(super) fn iter<'s, T: Linked<L> + Default>(
        &self,
        slab: &'s Slab<T>,
    ) -> impl Iterator<Item = (u32, &'s T)> + use<'s, T, L> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let element = slab.get(at)?;
            let here = std::mem::replace(&mut at, element.links().next);
            Some((here, element))
        })
    }

    fn join<T: Linked<L> + Default>(&mut self, slab: &mut Slab<T>, prev: u32, next: u32) {
        match slab.get_mut(prev) {
            Some(element) => element.links_mut().next = next,
            None => self.head = next,
        }
        match slab.get_mut(next) {
            Some(element) => element.links_mut().prev = prev,
            None => self.tail = prev,
        }
    }
}
