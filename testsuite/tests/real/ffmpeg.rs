//! A real program as users run it: ffmpeg encodes a generated clip, and the clip is checked.

use std::path::Path;
use testsuite::heavy_world;
use testsuite::skip::{program, skipped};
use testsuite::world::finish;

#[test]
fn ffmpeg_encodes_a_clip_as_a_job() {
    if program("ffmpeg").is_none() || program("ffprobe").is_none() {
        return skipped("ffmpeg_encodes_a_clip_as_a_job", "ffmpeg is not installed");
    }
    let world = heavy_world!();
    let _node = world.up(2);
    let source = "testsrc=duration=2:size=160x120:rate=10";
    let encode = ["-f", "lavfi", "-i", source, "-c:v", "mpeg4", "-y", "clip.mp4"];
    let mut args = vec!["-c", "2", "--", "ffmpeg", "-nostdin", "-loglevel", "warning"];
    args.extend(encode);
    let job = world.submit(&args);
    let ran = world.docket(&["wait", &job.to_string()]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.describe(), world.ok(&["logs", "1", "--stderr"]));
    let mut probe = world.command(Path::new("ffprobe"));
    probe.args(["-v", "error", "-count_frames", "-select_streams", "v:0", "-show_entries"]);
    probe.args(["stream=codec_name,width,height,nb_read_frames", "-of", "csv=p=0", "clip.mp4"]);
    let probed = finish(probe, &[]);
    assert_eq!(probed.text().trim_end(), "mpeg4,160,120,20", "{}", probed.describe());
    assert!(world.show(job)["rusage"]["user_s"].as_f64().is_some_and(|s| s > 0.0), "it used cpu");
    // And one that ffmpeg itself refuses.
    let bad = world.docket(&["run", "--", "ffmpeg", "-nostdin", "-i", "no-such-clip.mp4"]);
    assert!(matches!(bad.code, Some(code) if code != 0), "{}", bad.describe());
    assert!(bad.err().contains("no-such-clip.mp4"), "ffmpeg's own words: {}", bad.err());
}
