//! Reading an array back from an image: its shared records first, then those of single tasks; what was done
//! to a node; and what jobs wait for.

use super::array::Array;
use super::depend::Waits;
use super::drain::Drained;
use super::job::Job;
use super::news::News;
use super::ranges::Ranges;
use super::table::Slot;
use super::targets::ranges;
use super::thaw::{Broken, Reader};
use proto::v1;
use std::sync::Arc;

/// An array of which tasks may still come.
pub(super) struct OpenArray {
    head: Job,
    limit: Option<u32>,
    groups: Vec<(Ranges, Job)>,
    own: Vec<(u32, Job)>,
}

impl Reader {
    /// How evicted jobs ended, and news that is not told.
    pub(super) fn dependencies(&mut self, image: &v1::ImageDependencies) -> Result<(), Broken> {
        for news in &image.news {
            let news = News::thaw(news).map_err(|_| "news of too many tasks")?;
            self.ledger.news.push_back(news);
        }
        let mut pages = image.failed.iter();
        match pages.all(|page| self.ledger.gone.thaw(page)) {
            true => Ok(()),
            false => Err("a page of outcomes that is none, or comes twice"),
        }
    }

    pub(super) fn drained(&self, image: &v1::ImageDrained) -> Result<Drained, Broken> {
        let (by, reason) = (self.user(image.user)?, image.reason.as_str().into());
        Ok(Drained { by, reason, wall_ms: image.wall_ms })
    }

    pub(super) fn array(&mut self, image: &v1::ImageArray) -> Result<(), Broken> {
        let head = image.head.as_ref().ok_or("an array without head")?;
        let head = self.whole_job(head)?;
        let groups = image.groups.iter().map(|group| {
            let members = ranges(&group.members).map_err(|_| "an array with too many tasks")?;
            let job = group.job.as_ref().ok_or("tasks without their record")?;
            match members.is_empty() {
                true => Err("a record that no task has"),
                false => Ok((members, self.record_of(&head, job)?)),
            }
        });
        let groups = groups.collect::<Result<_, Broken>>()?;
        self.open_array = Some(OpenArray { head, limit: image.limit, groups, own: Vec::new() });
        Ok(())
    }

    /// A task that has a record of its own.
    pub(super) fn member(&mut self, image: &v1::ImageJob) -> Result<(), Broken> {
        let open = self.open_array.take().filter(|open| open.head.id.0 == image.id);
        let mut open = open.ok_or("a task without its array")?;
        let number = image.task.ok_or("a task without number")?;
        let job = self.record_of(&open.head, image)?;
        open.own.push((number, job));
        self.open_array = Some(open);
        Ok(())
    }

    /// Every task of the array that was being read has come.
    pub(super) fn close_array(&mut self) -> Result<(), Broken> {
        let Some(OpenArray { head, limit, groups, own }) = self.open_array.take() else {
            return Ok(());
        };
        let id = head.id;
        let array = Array::thawed(head, limit, groups, own);
        let array = array.ok_or("an array without tasks, or with one twice")?;
        self.ledger.jobs.put(id, Slot::Array(Arc::new(array)));
        Ok(())
    }
}

/// What a job, or the array whose head it is, waits for.
pub(super) fn waits(image: &v1::ImageJob) -> Result<Option<Box<Waits>>, Broken> {
    let Some(waits) = image.blocked.as_ref().and_then(|blocked| blocked.waits.as_ref()) else {
        return Ok(None);
    };
    let numbers = |wire: &[v1::TaskRange]| ranges(wire).map_err(|_| "too many dependencies");
    let (open, each) = (numbers(&waits.open)?, numbers(&waits.each)?);
    Ok(Some(Box::new(Waits { open, each, begin_wall_ms: waits.begin_wall_ms })))
}
