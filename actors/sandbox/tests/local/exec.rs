use crate::support::*;

#[tokio::test]
async fn smoke() {
    let site = site(config());
    let started = tokio::time::Instant::now();
    let sandbox = site.make_box().await;
    println!("create {:?}", started.elapsed());
    for command in ["id", "cat hello.txt; pwd; env", "ls -la / /dev /testbed /home/agent; cat /etc/passwd; df -h", "ps aux; cat /proc/self/status | grep -i cap; cat /proc/self/limits", "cat /proc/self/mountinfo; echo x > hello.txt; touch /usr/x; touch /x; touch /etc/passwd", "ip a; python3 -c 'import socket; s=socket.socket(); s.bind((\"127.0.0.1\",0)); s.listen(); socket.create_connection(s.getsockname()); print(1)'; unshare -U id", "cat /proc/1/environ; ls -l /proc/1/fd; kill -9 1; echo $?"] {
        let t = tokio::time::Instant::now();
        let o = sandbox.exec(request(command)).await.unwrap();
        println!("$ {command}\n{}rc {} {:?} {:?}", text(&o), o.returncode, o.exception, t.elapsed());
    }
    for _ in 0..3 { let t = tokio::time::Instant::now(); sandbox.exec(request("true")).await.unwrap(); println!("{:?}", t.elapsed()); }
    let t = tokio::time::Instant::now();
    sandbox.destroy().await.unwrap();
    println!("destroy {:?}", t.elapsed());
    assert_eq!(std::fs::read_dir(site.sandboxes_dir()).unwrap().count(), 0);
}
